"""The papers' listings, literally: float64 NumPy, client by client and round by round.

Each takes the problem, the table of weights q (T, N), the learning rates γ_t (T,), the number of
local steps I and x_0, and returns x_0, ..., x_T. They share nothing with the code under test.
"""

import math

import numpy as np


def local(problem, n, x, lr, steps, correction=0.0, mu=0.0):
    """I local steps from x; returns where they end and the raw gradients on the way."""
    y, gradients = x.copy(), []
    for _ in range(steps):
        g = problem.gradient(n, y)
        gradients.append(g)
        y = y - lr * (g + correction + mu * (y - x))
    return y, gradients


def present(q_t):
    return [n for n, q in enumerate(q_t) if q > 0]


def fedavg(problem, q, lr, steps, x, *, server_lr=1.0, weights="mean", mu=0.0):
    xs = [x]
    for t in range(len(q)):
        S, step = present(q[t]), np.zeros_like(x)
        for n in S:
            delta = local(problem, n, x, lr[t], steps, mu=mu)[0] - x
            weight = {"mean": 1 / len(S), "all": 1 / len(q[t]), "given": q[t][n]}[weights]
            step += weight * delta
        x = x + server_lr * step
        xs.append(x)
    return np.array(xs)


def scaled(problem, q, lr, steps, x):
    """The steps of FedAvg, each coordinate divided by the size of its steps, relative to all."""
    xs, v = [x], np.zeros_like(x)
    for t in range(len(q)):
        D = fedavg(problem, q[t : t + 1], lr[t : t + 1], steps, x)[-1] - x
        v = v + D**2
        if v.any():
            s = np.sqrt(v / v.mean())
            c = 1 / np.sqrt(np.mean((s / (s + 0.1)) ** 2))
            x = x + np.minimum(10, c / (s + 0.1)) * D
        xs.append(x)
    return np.array(xs)


def known_rates(problem, q, lr, steps, x, *, rates, server_lr=1.0):
    xs, N = [x], problem.clients
    for t in range(len(q)):
        step = np.zeros_like(x)
        for n in present(q[t]):
            step += (local(problem, n, x, lr[t], steps)[0] - x) / rates[n]
        x = x + server_lr / N * step
        xs.append(x)
    return np.array(xs)


def algorithm_2(took_part, K):
    """Paper 001, Algorithm 2, for one client: ω_0, ..., ω_T from whether it took part."""
    M, S, omegas = 0, 0, [1.0]
    for t in range(1, len(took_part) + 1):
        S += 1
        if took_part[t - 1] or S == K:
            s = S
            omegas.append(float(s) if M == 0 else (M * omegas[-1] + s) / (M + 1))
            M, S = M + 1, 0
        else:
            omegas.append(omegas[-1])
    return omegas


def algorithm_2_decayed(took_part, K, decay):
    """The same with an exponentially weighted mean."""
    M, S, omegas = 0, 0, [1.0]
    for t in range(1, len(took_part) + 1):
        S += 1
        if took_part[t - 1] or S == K:
            omegas.append(float(S) if M == 0 else decay * omegas[-1] + (1 - decay) * S)
            M, S = M + 1, 0
        else:
            omegas.append(omegas[-1])
    return omegas


def algorithm_2_pooled(took_part, K, groups):
    """The same with one list of closed intervals for each group; (T, N) -> (T + 1, N)."""
    T, N = np.shape(took_part)
    closed, S = {group: [] for group in groups}, [0] * N
    omegas = [[1.0] * N]
    for t in range(1, T + 1):
        for n in range(N):
            S[n] += 1
            if took_part[t - 1][n] or S[n] == K:
                closed[groups[n]].append(S[n])
                S[n] = 0
        omegas.append([np.mean(closed[g]) if closed[g] else 1.0 for g in groups])
    return np.array(omegas)


def fedau(problem, q, lr, steps, x, *, K=math.inf, server_lr=1.0):
    xs, N = [x], problem.clients
    omega = [algorithm_2([q[t][n] > 0 for t in range(len(q))], K) for n in range(N)]
    for t in range(len(q)):
        step = np.zeros_like(x)
        for n in present(q[t]):
            step += omega[n][t] * (local(problem, n, x, lr[t], steps)[0] - x)
        x = x + server_lr / N * step
        xs.append(x)
    return np.array(xs)


def trimmed(problem, q, lr, steps, x, *, b, K=None, server_lr=1.0):
    """Yin et al., coordinate by coordinate, of FedAvg (K None) or with FedAU's weights."""
    xs, N = [x], problem.clients
    omega = [algorithm_2([q[t][n] > 0 for t in range(len(q))], K or math.inf) for n in range(N)]
    for t in range(len(q)):
        S, step = present(q[t]), np.zeros_like(x)
        weight = {n: server_lr * (omega[n][t] / N if K else 1 / len(S)) for n in S}
        deltas = {n: local(problem, n, x, lr[t], steps)[0] - x for n in S}
        for j in range(len(x) if S else 0):
            order = sorted(S, key=lambda n: deltas[n][j])
            kept = order[b(len(S)) : len(S) - b(len(S))]
            mean = sum(weight[n] * deltas[n][j] for n in kept) / sum(weight[n] for n in kept)
            step[j] = sum(weight.values()) * mean
        x = x + step
        xs.append(x)
    return np.array(xs)


def clipped(problem, q, lr, steps, x, *, bound, quantile=None, rate=0.2, K=math.inf):
    """FedAU of clipped updates; the bound as in Andrew et al., Algorithm 1 without noise."""
    xs, N, C = [x], problem.clients, bound
    omega = [algorithm_2([q[t][n] > 0 for t in range(len(q))], K) for n in range(N)]
    for t in range(len(q)):
        S, step, inside = present(q[t]), np.zeros_like(x), 0
        for n in S:
            delta = local(problem, n, x, lr[t], steps)[0] - x
            norm = math.sqrt(sum(v * v for v in delta))
            inside += norm <= C
            step += omega[n][t] / N * delta * min(1.0, C / norm)
        if quantile is not None and S:
            C = C * math.exp(-rate * (inside / len(S) - quantile))
        x = x + step
        xs.append(x)
    return np.array(xs)


def fedvarp(problem, q, lr, steps, x, *, server_lr=1.0, empty_rounds="skip"):
    xs, y = [x], [np.zeros_like(x) for _ in range(problem.clients)]
    for t in range(len(q)):
        S = present(q[t])
        deltas = {n: local(problem, n, x, lr[t], steps)[0] - x for n in S}
        if S:
            x = x + server_lr * (np.mean(y, axis=0) + sum(deltas[n] - y[n] for n in S) / len(S))
        elif empty_rounds == "memory":
            x = x + server_lr * np.mean(y, axis=0)
        for n in S:
            y[n] = deltas[n]
        xs.append(x)
    return np.array(xs)


def fedstale(problem, q, lr, steps, x, *, beta, rates=None, server_lr=1.0, empty_rounds="skip"):
    """The authors' program: the active clients, then the stored updates of active and others."""
    N = problem.clients
    xs, h = [x], [np.zeros_like(x) for _ in range(N)]
    omega = [algorithm_2([q[t][n] > 0 for t in range(len(q))], math.inf) for n in range(N)]
    for t in range(len(q)):
        S, step = present(q[t]), np.zeros_like(x)
        weight = {n: (omega[n][t] if rates is None else 1 / rates[n]) / N for n in S}
        deltas = {n: local(problem, n, x, lr[t], steps)[0] - x for n in S}
        for n in range(N):
            if n in S:
                step += weight[n] * deltas[n] + beta * (1 / N - weight[n]) * h[n]
            else:
                step += beta * (1 / N) * h[n]
        for n in S:
            h[n] = deltas[n]
        if S or empty_rounds == "memory":
            x = x + server_lr * step
        xs.append(x)
    return np.array(xs)


def f3ast(problem, q, lr, steps, x, *, beta, initial=None, server_lr=1.0):
    """The authors' program without its last division by the size of the cohort."""
    N = problem.clients
    xs, r = [x], np.full(N, 1 / N if initial is None else initial)
    for t in range(len(q)):
        S, step = present(q[t]), np.zeros_like(x)
        r = (1 - beta) * r
        r[S] += beta
        for n in S:
            step += (1 / N) / r[n] * (local(problem, n, x, lr[t], steps)[0] - x)
        x = x + server_lr * step
        xs.append(x)
    return np.array(xs)


def auto(problem, q, lr, steps, x, *, server_lr=1.0, preconditioned=True, control_variates=False):
    """The update of the docstring, client by client; only the output is a mean."""
    N, d, rho = problem.clients, len(x), 2 / (1 + math.sqrt(5))
    xs, c, M, t, v = [x], [0.0] * N, 0, 0, [0.0] * d
    h = [np.zeros_like(x) for _ in range(N)]
    for r in range(len(q)):
        S, D = present(q[r]), np.zeros_like(x)
        owed = t + 1 + N / rho * max(t, 1) / max(M, 1)
        debt = [max(0.0, owed - c[n]) for n in range(N)]
        total = sum(rho * debt[n] for n in S)
        cut = min(1.0, 1.1 * N / total) if total else 1.0
        if S:
            D = D + server_lr / N * sum(h)
        for n in S:
            a = cut * rho * debt[n]
            c[n] = owed - debt[n] + a
            delta = local(problem, n, x, lr[r], steps)[0] - x
            D = D + server_lr * a / N * (delta - h[n])
            if control_variates:
                h[n] = delta
        M += len(S)
        t += 1 if S else 0
        P = [1.0] * d
        if preconditioned:
            v = [v[i] + D[i] ** 2 for i in range(d)]
        if any(v):
            s = [math.sqrt(v[i] / (sum(v) / d)) for i in range(d)]
            P = [1 / (s[i] + 1 / 10) for i in range(d)]
            moved = math.sqrt(sum((P[i] * s[i]) ** 2 for i in range(d)) / d)
            P = [min(10.0, P[i] / moved) for i in range(d)]
        x = np.array([x[i] + P[i] * D[i] for i in range(d)])
        xs.append(x)
    return np.array(xs)


def fedawe(problem, q, lr, steps, x, *, server_lr=1.0, clip=None, output=False):
    """Algorithm 1, line by line; `output` returns the means of all clients' models instead.

    With `clip`, the lines of the authors' program that clip what Algorithm 1 adds to the models.
    """
    m = problem.clients
    x_i, tau, xs, means = [x] * m, [-1] * m, [x], [x]
    for t in range(len(q)):
        A, reported, base, delta = present(q[t]), [], 0.0, 0.0
        for i in A:
            end, _ = local(problem, i, x_i[i], lr[t], steps)
            G = x_i[i] - end
            reported.append(x_i[i] - server_lr * (t - tau[i]) * G)
            base, delta = base + x_i[i], delta - G * (t - tau[i])
            tau[i] = t
        if A:
            x = sum(reported) / len(A)
        if A and clip is not None:
            vector = delta / len(A)
            if np.linalg.norm(vector) > clip:
                vector = vector / np.linalg.norm(vector) * clip
            x = base / len(A) + server_lr * vector
        for i in A:
            x_i[i] = x
        xs.append(x)
        means.append(np.mean(x_i, axis=0))
    return np.array(means if output else xs)


def fedpbc(problem, q, lr, steps, x, *, server_lr=1.0, output=False):
    """The authors' program: every client trains; `output` returns the means of all models."""
    N = problem.clients
    w_local, xs, means = [x] * N, [x], [x]
    for t in range(len(q)):
        w_accumulate, accumulated = np.zeros_like(x), 0
        for n in range(N):
            w_tmp = local(problem, n, w_local[n], lr[t], steps)[0]
            w_local[n] = w_local[n] + (w_tmp - w_local[n]) * server_lr
            if q[t][n] > 0:
                w_accumulate, accumulated = w_accumulate + w_local[n], accumulated + 1
        if accumulated > 0:
            x = w_accumulate / accumulated
        for n in present(q[t]):
            w_local[n] = x
        xs.append(x)
        means.append(sum(w_local) / N)
    return np.array(means if output else xs)


def focus(problem, q, lr, steps, x, *, server_lr=1.0):
    """The authors' program: `steps` + 1 gradients and `steps` moves; y tracks the gradient."""
    xs, y_server = [x], np.zeros_like(x)
    previous = [np.zeros_like(x) for _ in range(problem.clients)]
    for t in range(len(q)):
        S = present(q[t])
        for n in S:
            z, y = x, np.zeros_like(x)
            for k in range(steps + 1):
                if k > 0:
                    z = z - lr[t] * y
                current = problem.gradient(n, z)
                y = y + current - previous[n]
                previous[n] = current
            y_server = y_server + y
        if S:
            x = x - server_lr * lr[t] * y_server
        xs.append(x)
    return np.array(xs)


def mifa(problem, q, lr, steps, x, *, server_lr=1.0, unseen="zero"):
    xs, y, N = [x], {}, problem.clients
    for t in range(len(q)):
        for n in present(q[t]):
            y[n] = local(problem, n, x, lr[t], steps)[0] - x
        divisor = {"zero": N, "exclude": max(len(y), 1), "wait": N}[unseen]
        if unseen != "wait" or len(y) == N:
            x = x + server_lr * sum(y.values(), np.zeros_like(x)) / divisor
        xs.append(x)
    return np.array(xs)


def fedlaavg(problem, q, lr, steps, x):
    xs, g = [x], [np.zeros_like(x) for _ in range(problem.clients)]
    for t in range(len(q)):
        for n in present(q[t]):
            g[n] = np.sum(local(problem, n, x, lr[t], steps)[1], axis=0)
        x = x - lr[t] * np.mean(g, axis=0)
        xs.append(x)
    return np.array(xs)


def scaffold(problem, q, lr, steps, x, *, server_lr=1.0, option=2, weights="mean"):
    N = problem.clients
    xs, c, c_n = [x], np.zeros_like(x), [np.zeros_like(x) for _ in range(N)]
    for t in range(len(q)):
        S, step, change = present(q[t]), np.zeros_like(x), np.zeros_like(x)
        for n in S:
            y, _ = local(problem, n, x, lr[t], steps, correction=c - c_n[n])
            new = problem.gradient(n, x) if option == 1 else c_n[n] - c + (x - y) / (steps * lr[t])
            step += (1 / len(S) if weights == "mean" else q[t][n]) * (y - x)
            change += new - c_n[n]
            c_n[n] = new
        x, c = x + server_lr * step, c + change / N
        xs.append(x)
    return np.array(xs)


def amplified_scaffold(problem, q, lr, steps, x, *, P, factor, weights="mean"):
    """Paper 002, Algorithm 1: all raw gradients of a window are kept until its end."""
    N = problem.clients
    G, G_n = np.zeros_like(x), [np.zeros_like(x) for _ in range(N)]
    xs, x0, u, kept = [x], x, np.zeros_like(x), []
    for r in range(len(q)):
        S, step = present(q[r]), np.zeros_like(x)
        for n in S:
            weight = 1 / len(S) if weights == "mean" else q[r][n]
            y, gradients = local(problem, n, x, lr[r], steps, correction=G - G_n[n])
            kept.append((n, weight, gradients))
            step += weight * (y - x)
        x, u = x + step, u + step
        if (r + 1) % P == 0:
            x = x0 + factor * u
            for n in range(N):
                q_bar = sum(weight for m, weight, _ in kept if m == n) / P
                if q_bar > 0:
                    total = sum(w * g for m, w, gs in kept if m == n for g in gs)
                    G_n[n] = total / (P * steps * q_bar)
            G, x0, u, kept = np.mean(G_n, axis=0), x, np.zeros_like(x), []
        xs.append(x)
    return np.array(xs)


def amplified(problem, q, lr, steps, x, *, P, factor, weights="mean", start=0):
    """Paper 000, Algorithm 1, with a warm-up of `start` rounds."""
    xs, x0 = [x], x
    for t in range(len(q)):
        x = fedavg(problem, q[t : t + 1], lr[t : t + 1], steps, x, weights=weights)[-1]
        if t < start:
            x0 = x
        elif (t + 1 - start) % P == 0:
            x = x0 + factor * (x - x0)
            x0 = x
        xs.append(x)
    return np.array(xs)


def fedopt(problem, q, lr, steps, x, *, rule, server_lr, beta1, beta2, tau, v0):
    """Reddi et al., Algorithm 2, coordinate by coordinate."""
    xs, m, v = [x], np.zeros_like(x), np.full_like(x, v0)
    for t in range(len(q)):
        delta = fedavg(problem, q[t : t + 1], lr[t : t + 1], steps, x)[-1] - x
        x = x.copy()
        for j in range(len(x)):
            m[j] = beta1 * m[j] + (1 - beta1) * delta[j]
            square = delta[j] ** 2
            if rule == "adam":
                v[j] = beta2 * v[j] + (1 - beta2) * square
            else:
                sign = 1 if v[j] > square else -1 if v[j] < square else 0
                v[j] = v[j] - (1 - beta2) * square * sign
            x[j] += server_lr * m[j] / (math.sqrt(v[j]) + tau)
        xs.append(x)
    return np.array(xs)


def fedavgm(problem, q, lr, steps, x, *, server_lr, momentum, convention):
    xs, m = [x], np.zeros_like(x)
    for t in range(len(q)):
        delta = fedavg(problem, q[t : t + 1], lr[t : t + 1], steps, x)[-1] - x
        m = momentum * m + (delta if convention == "sum" else (1 - momentum) * delta)
        x = x + server_lr * m
        xs.append(x)
    return np.array(xs)


def fedbuff(problem, q, lr, steps, x, *, B, order, a=0.5, server_lr=1.0):
    """The authors' program, one end of a training after the other, with its rate divided by B."""
    xs, seqnum, total_delta, reported = [x], 0, np.zeros_like(x), 0
    for t in range(len(q)):
        model_seqnum, init_model = seqnum, x
        for n in order(t, present(q[t])):
            if reported == 0:
                total_delta = np.zeros_like(x)
            delta = init_model - local(problem, n, init_model, lr[t], steps)[0]
            staleness = seqnum - model_seqnum
            total_delta = total_delta + delta * (1 / (1 + staleness) ** a)
            reported += 1
            if reported >= B:
                x = x - server_lr / B * total_delta
                seqnum, reported = seqnum + 1, 0
        xs.append(x)
    return np.array(xs)


def wait_steps(problem, q, lr, steps, x, *, P):
    xs = [x]
    for t in range(len(q)):
        if (t + 1) % P == 0:
            ends = [local(problem, n, x, lr[t], steps)[0] for n in range(problem.clients)]
            x = np.mean(ends, axis=0)
        xs.append(x)
    return np.array(xs)


def wait_gradient(problem, q, lr, steps, x, *, P):
    xs, collected = [x], []
    for t in range(len(q)):
        collected += [(q[t][n], problem.gradient(n, x)) for n in present(q[t])]
        if (t + 1) % P == 0:
            if collected:
                total = sum(weight for weight, _ in collected)
                x = x - lr[t] * sum(weight * g for weight, g in collected) / total
            collected = []
        xs.append(x)
    return np.array(xs)


def weighted_fedavg(problem, q, lr, steps, x, *, p, normalise):
    """Paper 004, equation (10): models, not updates, are averaged."""
    xs, N = [x], problem.clients
    for t in range(len(q)):
        S = present(q[t])
        if S:
            models = [p[n] * local(problem, n, x, lr[t], steps)[0] for n in S]
            divisor = sum(p[n] for n in S) if normalise else len(S) / N
            x = sum(models) / divisor
        xs.append(x)
    return np.array(xs)


def central(problem, q, lr, steps, x):
    xs = [x]
    for t in range(len(q)):
        for _ in range(steps * len(present(q[t]))):
            gradients = [problem.gradient(n, x) for n in range(problem.clients)]
            x = x - lr[t] * np.mean(gradients, axis=0)
        xs.append(x)
    return np.array(xs)


def switch(problem, q, lr, steps, x, *, first, second, at):
    before = first(problem, q[:at], lr[:at], steps, x)
    return np.concatenate([before, second(problem, q[at:], lr[at:], steps, before[-1])[1:]])
