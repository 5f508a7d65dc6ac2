"""The mechanisms, one file each. This tuple is the table of contents."""

from dpsql.mechanisms.gaussian import Gaussian
from dpsql.mechanisms.laplace import Laplace

Mechanism = Laplace | Gaussian
MECHANISMS = (Laplace, Gaussian)

__all__ = ["MECHANISMS", "Gaussian", "Laplace", "Mechanism"]
