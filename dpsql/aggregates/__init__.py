"""The aggregates, one file each. None of them carries a privacy argument: see `plan.Rule`."""

from dpsql.aggregates.avg import AVG
from dpsql.aggregates.count import COUNT
from dpsql.aggregates.sum import SUM

AGGREGATES = (COUNT, SUM, AVG)

__all__ = ["AGGREGATES"]
