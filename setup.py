"""Builds the one extension, `nixldesc.kernels._kernels`.

Everything about the project that is only data stands in pyproject.toml. What stands here is how the
loops are compiled, and nowhere else: no .pyx file sets a safety directive (tests/house/test_house.py).

The environment variable NIXLDESC_BUILD chooses a profile:

    release   (default) what users get: no checks inside the loops, -O3
    checked   every index into a typed memoryview and every integer operation is checked
    asan      checked, and the address and undefined-behaviour sanitizers; run it with
              LD_PRELOAD="$(gcc -print-file-name=libasan.so)" (see `make test-asan`)
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

# What the loops mean, the same in every profile: C's own division (the kernels divide only by
# proven positive numbers) and no negative indices.
MEANING = {
    "language_level": 3,
    "cdivision": True,
    "wraparound": False,
    "freethreading_compatible": True,
}
UNCHECKED = {"boundscheck": False, "initializedcheck": False, "overflowcheck": False}
CHECKED = {"boundscheck": True, "initializedcheck": True, "overflowcheck": True}

# CPython asks for -fwrapv, under which an overflow is defined and not looked for.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv"]

# Without aligned loops it is a matter of luck whether a four-instruction loop crosses a cache line of
# code: 8,192 blocks x 64 regions took 76 us or 49 us to write, from one build to the next.
FAST = ["-O3", "-falign-loops=64", "-g0"]

# profile: (directives, compiler arguments, linker arguments)
PROFILES = {
    "release": (UNCHECKED, FAST, []),
    "checked": (CHECKED, ["-O1", "-g"], []),
    "asan": (CHECKED, ["-O1", "-g", "-fno-omit-frame-pointer", *SANITIZE], SANITIZE),
}

profile = os.environ.get("NIXLDESC_BUILD") or "release"
if profile not in PROFILES:
    raise SystemExit(f"NIXLDESC_BUILD is {profile!r}; it must be one of {', '.join(PROFILES)}")
directives, compile_args, link_args = PROFILES[profile]

kernels = Extension(
    "nixldesc.kernels._kernels",
    ["nixldesc/kernels/_kernels.pyx"],
    extra_compile_args=compile_args,
    extra_link_args=link_args,
)

setup(
    # `force`, and a build folder for each profile: neither Cython nor setuptools notices that only
    # the profile changed, and a checked build made of release objects checks nothing.
    ext_modules=cythonize(
        [kernels],
        compiler_directives={**MEANING, **directives},
        build_dir=f"build/{profile}/cython",
        force=True,
    ),
    options={"build": {"build_base": f"build/{profile}"}},
)
