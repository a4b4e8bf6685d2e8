"""The table of all methods: a new one costs one line here, and one in docs/methods.md.

Each line is a method that reaches the optimum of well-conditioned quadratics with everyone present
and one local step; classes that appear with several settings have several lines.
"""

from fedtide import algorithms as a

METHODS = [
    a.FedAvg(),
    a.FedAvg(weights="all"),
    a.FedAvg(weights="given"),
    a.KnownRates(rates=None),
    a.FedAU(cutoff=3),
    a.FedAU(average=0.5),
    a.FedAU(cutoff=4, groups=["a", "b", "a", "b"]),
    a.F3AST(),
    a.Auto(),
    a.Auto(control_variates=True),
    a.FedVARP(),
    a.FedVARP(empty_rounds="memory"),
    a.FedStale(),
    a.FedStale(rates="known", beta=0.2, empty_rounds="memory"),
    a.MIFA(),
    a.MIFA(unseen="exclude"),
    a.MIFA(unseen="wait"),
    a.FedLaAvg(),
    a.FOCUS(server_lr=0.25),
    a.FedAWE(),
    a.FedAWE(clip=0.1),
    a.FedPBC(),
    a.FedProx(mu=0.3),
    a.Scaffold(),
    a.Scaffold(option=1),
    a.AmplifiedScaffold(period=3, factor=1.5),
    a.Amplified(period=3, factor=1.5),
    a.FedAdam(server_lr=1.0, tau=1.0, beta1=0.5, beta2=0.9),
    a.FedYogi(server_lr=1.0, tau=1.0, beta1=0.5, beta2=0.9),
    a.FedAvgM(momentum=0.5),
    a.FedBuff(buffer_size=4),
    a.FedBuff(buffer_size=2, exponent=0.0),
    a.WaitForAll(period=2),
    a.WaitForAll(period=2, mode="gradient", batch="full"),
    a.WeightedFedAvg(rates=None),
    a.Switch(first=a.FedAvg(), second=a.Scaffold(), at=5),
    a.Averaged(a.FedAvg()),
    a.Averaged(a.FedAU(), power=2),
    a.Scaled(),
    a.CentralSGD(),
    a.Amplified(
        period=3,
        factor=1.5,
        inner=a.FedAdam(inner=a.FedAU(), server_lr=1.0, tau=1.0, beta1=0.5, beta2=0.9),
    ),
    a.Averaged(a.Amplified(period=2, factor=1.5, inner=a.FedProx(mu=0.1))),
    a.FedAvgM(momentum=0.3, inner=a.Switch(first=a.MIFA(), second=a.FedVARP(), at=4)),
    a.Switch(first=a.FedAvg(), second=a.FedAWE(), at=3),
    a.Switch(first=a.KnownRates(), second=a.FedStale(rates="known"), at=3),
]

BOUNDED = [
    a.Clipped(bound=0.3, inner=a.FedAU(cutoff=3)),
    a.Clipped(bound=1.0, quantile=0.5, inner=a.MIFA()),
    a.TrimmedMean(trim=0.3),
    a.TrimmedMean(trim=0.2, inner=a.FedAU(cutoff=3)),
    a.Median(),
    a.Median(a.KnownRates(rates=None)),
    a.Clipped(
        bound=0.5,
        inner=a.FedAdam(inner=a.Median(a.FedAU()), server_lr=1.0, tau=1.0, beta1=0.5, beta2=0.9),
    ),
]
"""Methods that bound the influence of a client, and reach an optimum on which the clients agree."""
