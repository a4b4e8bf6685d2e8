"""The methods tested with real processes, shared by the server app and the test."""

from fedtide import algorithms as A

METHODS = {
    "fedavg": A.FedAvg(),
    "fedau": A.FedAU(cutoff=2),
    "mifa": A.MIFA(),
    "amplified": A.Amplified(period=2, factor=1.5, inner=A.FedAvg()),
    "amplified-scaffold": A.AmplifiedScaffold(period=2, factor=1.3),
}
