"""Train a small GPT on the help texts of Python, and let it write.

    python examples/09_gpt.py [--steps N] [--seed N] [--output PATH]

A transformer with causal attention reads characters and predicts the next one. The text is that of Python's
`help("topics")`. With a GPU, attention runs in float16 by `ct.attention` and `ct.attention_backward`, and all
else in float32 by `ct.matmul` and `ct.layer_norm`; without one the reference computes the same in NumPy. The
picture has the losses and the attention of one head.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

import cudnn_ct as ct

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 16, 64, 64, 4, 2
STEPS, RATE, DECAYS = 400, 3e-3, (0.9, 0.98)  # of Adam
GOAL = 3.6  # bits for each character of unseen text, for a whole training
LETTERS = 200_000  # of the text
PROMPT = "The "
OUTPUT = Path(__file__).parent / "output" / "gpt.png"

available = ct.available()
ops = ct if available else ct.reference  # the same operations under the same names
put = ct.asarray if available else np.asarray  # NumPy arrays to where ops computes
empty = ct.empty if available else np.empty
HALF = "float16" if available else "float32"  # cuDNN's attention takes half precision


def fetch(array: Any) -> np.ndarray:
    return array.numpy() if available else array


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if the network did not learn."""
    parser = argparse.ArgumentParser(description="A small GPT.")
    parser.add_argument("--steps", type=int, default=STEPS, help="default: %(default)s")
    parser.add_argument("--letters", type=int, default=200, help="to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="default: %(default)s")
    options = parser.parse_args(arguments)

    where = f"on the GPU by cuDNN {ct.version()}" if available else "in NumPy by the reference"
    print(f"training {where}" + ("" if available else f", because there is {available.reason}"))
    text = help_texts()
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(character) for character in text])
    seen, unseen = np.split(codes, [len(codes) * 9 // 10])
    print(f"{len(text)} characters, {len(alphabet)} different ones")

    rng = np.random.default_rng(options.seed)
    model = GPT(len(alphabet), rng)
    start, losses = perf_counter(), []
    before = model.bits(unseen, np.random.default_rng(1))
    for step in track(range(options.steps), "training", console=Console(stderr=True)):
        loss = model.learn(
            *batch(seen, rng), rate=RATE * min(1, (step + 1) / 20) * (1 - step / options.steps)
        )
        losses.append(loss)
        if step % max(options.steps // 8, 1) == 0:
            print(f"step {step}: {loss:.2f} bits")
    bits = model.bits(unseen, np.random.default_rng(1))
    print(f"{options.steps} steps in {perf_counter() - start:.1f} s")
    print(f"from {before:.2f} to {bits:.2f} bits for each character of unseen text")

    prompt = [alphabet.index(character) for character in PROMPT]
    written = model.write(prompt, options.letters, rng)
    print(f"what it writes after {PROMPT!r}:\n")
    print(PROMPT + "".join(alphabet[code] for code in written) + "\n")
    save_picture(losses, model.attention_of(batch(unseen, rng)[0]), options.output)
    print(f"saved {options.output}")
    if options.steps < STEPS:
        print("a short training: only that the bits fell is checked")
        return 0 if bits < before else 1
    print(f"{bits:.2f} bits are {'fewer' if bits < GOAL else 'not fewer'} than {GOAL}")
    return 0 if bits < GOAL else 1


def help_texts() -> str:
    """Return the beginning of Python's help texts, which are ASCII for the most part."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return "".join(character for character in text if character == "\n" or " " <= character <= "~")[:LETTERS]


def batch(codes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return random pieces of a text, and the same pieces one character later: (BATCH, LENGTH)."""
    first = rng.integers(0, len(codes) - LENGTH - 1, BATCH)[:, None] + np.arange(LENGTH)
    return codes[first], codes[first + 1]


class GPT:
    """A transformer on matrices with a row for each character."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size = size
        shapes = {"embed": (size + LENGTH, WIDTH), "scores": (WIDTH, size)}
        for i in range(LAYERS):
            shapes |= {f"qkv{i}": (WIDTH, 3 * WIDTH), f"mix{i}": (WIDTH, WIDTH)}
            shapes |= {f"up{i}": (WIDTH, 4 * WIDTH), f"down{i}": (4 * WIDTH, WIDTH)}
        self.host = {
            name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
            for name, shape in shapes.items()
        }
        for norm in (*(f"{name}{i}" for i in range(LAYERS) for name in ("before", "between")), "last"):
            self.host |= {f"{norm} scale": np.ones(WIDTH, np.float32)}
            self.host |= {f"{norm} bias": np.zeros(WIDTH, np.float32)}
        self.weights = {name: put(w) for name, w in self.host.items()}
        self.moments = {name: [np.zeros_like(w), np.zeros_like(w)] for name, w in self.host.items()}
        self.step = 0

    # --- forwards ----------------------------------------------------------------------------------------

    def forward(self, codes: np.ndarray) -> tuple[Any, list[Any]]:
        """Return the scores of the next characters, (tokens, size), and what the gradient needs."""
        weights = self.weights
        x = ops.matmul(one_hot := self.one_hot(codes), weights["embed"])
        saved: list[Any] = [one_hot]
        for i in range(LAYERS):
            n, kept_n = self.normalise(f"before{i}", x)
            qkv = ops.matmul(n, weights[f"qkv{i}"])
            q, k, v = heads_of(half(qkv), len(codes))
            y, stats = ops.attention(q, k, v, causal=True, return_stats=True)
            joined = single(joined_heads(y))
            x1 = ops.matmul(joined, weights[f"mix{i}"], residual=x)
            n1, kept_n1 = self.normalise(f"between{i}", x1)
            up = ops.matmul(n1, weights[f"up{i}"])
            active = ops.activation(up, mode="relu")
            saved.append((kept_n, n, q, k, v, y, stats, joined, kept_n1, n1, up, active))
            x = ops.matmul(active, weights[f"down{i}"], residual=x1)
        n, kept_n = self.normalise("last", x)
        saved.append((kept_n, n))
        return ops.matmul(n, weights["scores"]), saved

    def one_hot(self, codes: np.ndarray) -> Any:
        """Return a 1 at each character and at its place, (tokens, size + LENGTH)."""
        places = np.broadcast_to(np.arange(codes.shape[1]), codes.shape)
        hot = [np.eye(self.size, dtype=np.float32)[codes], np.eye(LENGTH, dtype=np.float32)[places]]
        return put(np.concatenate(hot, axis=-1).reshape(codes.size, -1))

    def normalise(self, name: str, x: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return a layer normalisation, and the operands of its gradient."""
        scale = self.weights[f"{name} scale"]
        y, mean, invstd = ops.layer_norm(x, scale, self.weights[f"{name} bias"])
        return y, (x, scale, mean, invstd)

    # --- backwards ---------------------------------------------------------------------------------------

    def learn(self, codes: np.ndarray, after: np.ndarray, rate: float) -> float:
        """Make one step of Adam; return the loss in bits."""
        scores, saved = self.forward(codes)
        log_p = ops.softmax(scores, algo="log")
        target = np.eye(self.size, dtype=np.float32)[after].reshape(after.size, self.size)
        loss = -float((fetch(log_p) * target).sum()) / after.size
        dscores = ops.softmax_backward(put(target), log_p, algo="log", alpha=-1 / after.size)
        self.update(self.gradients(dscores, saved), rate)
        return loss / float(np.log(2))

    def gradients(self, dscores: Any, saved: list[Any]) -> dict[str, Any]:
        """Return the gradients of all weights."""
        found: dict[str, Any] = {}

        def dense_backward(name: str, dy: Any, x: Any) -> Any:
            dx, found[name], _ = ops.matmul_backward(dy, x, self.weights[name])
            return dx

        def norm_backward(name: str, dy: Any, kept: tuple[Any, ...]) -> Any:
            dx, found[f"{name} scale"], found[f"{name} bias"] = ops.layer_norm_backward(dy, *kept)
            return dx

        kept_n, n = saved[-1]
        dx = norm_backward("last", dense_backward("scores", dscores, n), kept_n)
        for i in reversed(range(LAYERS)):
            kept_n, n, q, k, v, y, stats, joined, kept_n1, n1, up, active = saved[1 + i]
            dactive = dense_backward(f"down{i}", dx, active)
            dup = ops.activation_backward(dactive, up, active, mode="relu")
            dx = ops.add(dx, norm_backward(f"between{i}", dense_backward(f"up{i}", dup, n1), kept_n1))
            djoined = dense_backward(f"mix{i}", dx, joined)
            dy = half(djoined).reshape(*tokens_of(q), WIDTH // HEADS).transpose((0, 2, 1, 3))
            dqkv = empty((*tokens_of(q)[:2], 3, *tokens_of(q)[2:], WIDTH // HEADS), HALF)
            into = tuple(dqkv[:, :, j].transpose((0, 2, 1, 3)) for j in range(3))
            ops.attention_backward(dy, q, k, v, y, stats, causal=True, out=into)
            dn = dense_backward(f"qkv{i}", single(dqkv.reshape(-1, 3 * WIDTH)), n)
            dx = ops.add(dx, norm_backward(f"before{i}", dn, kept_n))
        dense_backward("embed", dx, saved[0])
        return found

    def update(self, gradients: dict[str, Any], rate: float) -> None:
        """Make a step of Adam (Kingma and Ba 2015) in host memory; the weights are few."""
        self.step += 1
        for name, w in self.host.items():
            gradient = fetch(gradients[name])
            mean, square = self.moments[name]
            mean += (1 - DECAYS[0]) * (gradient - mean)
            square += (1 - DECAYS[1]) * (gradient**2 - square)
            scaled = mean / (1 - DECAYS[0] ** self.step)
            w -= rate * scaled / (np.sqrt(square / (1 - DECAYS[1] ** self.step)) + 1e-8)
            self.weights[name] = put(w)

    # --- use ---------------------------------------------------------------------------------------------

    def bits(self, codes: np.ndarray, rng: np.random.Generator) -> float:
        """Return the mean bits for a character of a text."""
        before, after = batch(codes, rng)
        log_p = fetch(ops.softmax(self.forward(before)[0], algo="log"))
        return float(-log_p[np.arange(after.size), after.ravel()].mean() / np.log(2))

    def write(self, prompt: list[int], count: int, rng: np.random.Generator) -> list[int]:
        """Draw characters one by one from the prediction for the last LENGTH ones."""
        written = list(prompt)
        for _ in range(count):
            given = written[-LENGTH:]
            padded = np.array([given + [0] * (LENGTH - len(given))])  # causal: what follows is not read
            scores = fetch(self.forward(padded)[0])[len(given) - 1].astype(np.float64)
            p = np.exp(1.5 * (scores - scores.max()))
            written.append(int(rng.choice(self.size, p=p / p.sum())))
        return written[len(prompt) :]

    def attention_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the weights of the first layer, (HEADS, LENGTH, LENGTH): the values are the identity."""
        q, k = self.forward(codes[:1])[1][1][2:4]
        one = np.broadcast_to(np.eye(LENGTH, dtype=HALF), (1, HEADS, LENGTH, LENGTH))
        return fetch(ops.attention(q, k, put(one.copy()), causal=True).y)[0].astype(np.float64)


# --- parts of the network ----------------------------------------------------------------------------------


def half(x: Any) -> Any:
    return x.astype(HALF)


def single(x: Any) -> Any:
    return x.astype("float32")


def heads_of(qkv: Any, sequences: int) -> tuple[Any, Any, Any]:
    """See (tokens, 3 * WIDTH) as three arrays (sequences, HEADS, LENGTH, head), without a copy."""
    split = qkv.reshape(sequences, -1, 3, HEADS, WIDTH // HEADS)
    q, k, v = (split[:, :, i].transpose((0, 2, 1, 3)) for i in range(3))
    return q, k, v


def joined_heads(y: Any) -> Any:
    """See heads as (tokens, WIDTH)."""
    return y.transpose((0, 2, 1, 3)).reshape(-1, WIDTH)


def tokens_of(q: Any) -> tuple[int, int, int]:
    """Return the numbers of sequences, tokens and heads."""
    return q.shape[0], q.shape[2], q.shape[1]


def save_picture(losses: list[float], weights: np.ndarray, path: Path) -> None:
    """Save the losses, and the attention of each head of the first layer."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 1 + len(weights), figsize=(4 + 3 * len(weights), 3.4))
    axes[0].plot(losses)
    axes[0].set(xlabel="step", ylabel="bits for each character")
    for head, (one, axis) in enumerate(zip(weights, axes[1:], strict=True)):
        axis.imshow(np.sqrt(one), cmap="magma")
        axis.set(title=f"attention of head {head}", xlabel="key", ylabel="query")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
