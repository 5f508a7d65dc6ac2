"""The mechanisms, one file each. This tuple is the table of contents."""

from dpsql.mechanisms.gaussian import Gaussian
from dpsql.mechanisms.laplace import Laplace
from dpsql.mechanisms.threshold import Threshold

Mechanism = Laplace | Gaussian
MECHANISMS = (Laplace, Gaussian, Threshold)

__all__ = ["MECHANISMS", "Gaussian", "Laplace", "Mechanism", "Threshold"]
