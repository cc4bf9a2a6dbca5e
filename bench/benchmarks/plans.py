"""What a peer costs before its first request, and what importing the library does."""

import ratios
import workloads

from nixldesc import plan, reader_counts, shard_range, source_ranks
from nixldesc._memory import forget


class Plans:
    """The plan of one destination rank, for each workload."""

    params = (list(workloads.WORKLOADS),)
    param_names = ("workload",)

    def setup(self, workload: str) -> None:
        self.workload = workloads.WORKLOADS[workload]()
        self.plan = plan(self.workload.dst, self.workload.srcs, dst_rank=0, dst_size=self.workload.dst_size)
        self.everyone = plan(self.workload.dst, self.workload.srcs, senders="all")
        self.src, self.dst = self.workload.request(1024, "random")
        self.srcs = dict.fromkeys(self.workload.srcs, self.src)

    def time_plan(self, _workload: str) -> None:
        plan(self.workload.dst, self.workload.srcs, dst_rank=0, dst_size=self.workload.dst_size)

    def time_first_request(self, _workload: str) -> None:
        made = plan(self.workload.dst, self.workload.srcs, dst_rank=0, dst_size=self.workload.dst_size)
        for pairs in made.values():
            for pair in pairs:
                pair.desc_ids(self.src, self.dst)

    def time_plan_met_first(self, _workload: str) -> None:
        forget()
        plan(self.workload.dst, self.workload.srcs, dst_rank=0, dst_size=self.workload.dst_size)

    def time_bind(self, _workload: str) -> None:
        self.plan.bind(self.workload.dst, self.workload.srcs)

    def time_bind_and_pairs(self, _workload: str) -> None:
        list(self.plan.bind(self.workload.dst, self.workload.srcs).values())

    def time_desc_ids_over_sources(self, _workload: str) -> None:
        self.plan.desc_ids(self.srcs, self.dst)

    def time_costs(self, _workload: str) -> None:
        self.plan.costs()

    def time_repeated(self, _workload: str) -> None:
        self.everyone.repeated(self.srcs, self.dst)

    def time_undelivered(self, _workload: str) -> None:
        self.plan.undelivered(self.srcs, self.dst)

    def track_plan_calls(self, _workload: str) -> int:
        size = self.workload.dst_size
        return ratios.steps(lambda: plan(self.workload.dst, self.workload.srcs, dst_rank=0, dst_size=size))

    def track_derived_regions(self, _workload: str) -> int:
        return sum(len(pair.dst.regions) for pairs in self.plan.values() for pair in pairs)

    track_plan_calls.unit = "function calls"  # type: ignore[attr-defined]
    track_derived_regions.unit = "regions"  # type: ignore[attr-defined]


class PlanGrowth:
    """A plan against the numbers of its regions and sources."""

    params = ([20, 160], [1, 8])
    param_names = ("regions", "sources")

    def setup(self, regions: int, sources: int) -> None:
        self.workload = workloads.wide_tp(regions, sources)

    def time_plan(self, _regions: int, _sources: int) -> None:
        plan(self.workload.dst, self.workload.srcs, dst_rank=0, dst_size=1)


class Replicas:
    """Who of equals sends."""

    def setup(self) -> None:
        self.workload = workloads.mla()

    def time_reader_counts(self) -> None:
        reader_counts([self.workload.dst] * 4, self.workload.srcs)

    def time_source_ranks(self) -> None:
        source_ranks(8, 4, 1, 8)

    def time_shard_range(self) -> None:
        shard_range(8, 16, 3)


def timeraw_import() -> str:
    return "import nixldesc"


def timeraw_import_numpy() -> str:
    return "import numpy"
