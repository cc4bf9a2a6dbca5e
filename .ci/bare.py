"""The installed wheel alone, beside NumPy and nothing else (`make test-dist`): does it stand up?"""

import importlib.metadata
import subprocess
import sys

import nixldesc

installed = {d.metadata["Name"].lower() for d in importlib.metadata.distributions()}
extra = installed - {"nixldesc", "numpy", "pip", "setuptools"}
if extra:
    sys.exit(f"installing the wheel brought in {sorted(extra)}")

region = nixldesc.Region("kv", 4096, 64, num_blocks=8, mem_type="DRAM")
layout = nixldesc.Layout([region])
ids = layout.desc_ids([[5, 0, 7]])
if ids.tolist() != [5, 0, 7] or ids.dtype != "int32":
    sys.exit(f"wrong ids: {ids!r}")

# The command line must do without its extra.
subprocess.run([sys.executable, "-m", "nixldesc", "--help"], check=True, stdout=subprocess.DEVNULL)
print(f"nixldesc {nixldesc.__version__} works alone, from {nixldesc.__file__}")
