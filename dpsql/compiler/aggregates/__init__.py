"""The aggregates, one file for each family. None of them carries a privacy argument: see `plan.Rule`."""

from dpsql.compiler.aggregates.avg import AVG
from dpsql.compiler.aggregates.count import COUNT
from dpsql.compiler.aggregates.regression import REGRESSIONS
from dpsql.compiler.aggregates.sum import COUNT_IF, SUM
from dpsql.compiler.aggregates.variance import VARIANCES
from dpsql.compiler.program import Rule

AGGREGATES = (COUNT, SUM, COUNT_IF, AVG, *VARIANCES, *REGRESSIONS)
RULES: dict[str, Rule] = {word: rule for rule in AGGREGATES for word in (rule.name, *rule.aliases)}

__all__ = ["AGGREGATES", "RULES"]
