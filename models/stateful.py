"""Models that are run again and again, each run with what the one before left.

`Run` computes a model's outputs, by name, from its inputs; what is here does not know which runtime
does so, and every function returns all that a whole sequence of runs gave.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from rutc.models import speech

Array = NDArray[np.generic]
Arrays = Mapping[str, Array]
Run = Callable[[Arrays], Arrays]


def generate(run: Run, prompt: NDArray[np.int64], caches: Arrays, count: int) -> dict[str, Array]:
    """Returns `count` tokens that follow a prompt {1, n}, their logits, and the grown caches.

    Each token is the likeliest one that did not occur yet: networks with random weights would
    repeat one for ever. `caches` are `past_*` inputs before the prompt, of length 0; the output
    `present_*` of a run is the input `past_*` of the next one.
    """
    seen = set(prompt.reshape(-1).tolist())
    fed, past = prompt, dict(caches)
    chosen: list[int] = []
    logits: list[Array] = []
    for _ in range(count):
        results = run({"input_ids": fed, **past})
        past = {name: results[name.replace("past", "present")] for name in past}
        logits.append(results["logits"][0, -1])
        ranked = np.argsort(-np.asarray(logits[-1], np.float64), kind="stable")
        chosen.append(next(int(token) for token in ranked if int(token) not in seen))
        seen.add(chosen[-1])
        fed = np.array([chosen[-1:]])
    grown = {name.replace("past", "present"): value for name, value in past.items()}
    return {"tokens": np.array(chosen), "logits": np.stack(logits), **grown}


def listen(run: Run, seed: int, seconds: float, framing: speech.Framing) -> dict[str, Array]:
    """Returns silero-vad's probability of speech for each frame, and its state after each."""
    frames = speech.frames(seed, int(seconds * framing.rate_hz) // framing.window, framing)
    state: Array = np.zeros((2, 1, speech.RECURRENT_SIZE), np.float32)
    rate = np.array(framing.rate_hz, np.int64)
    probabilities: list[Array] = []
    states: list[Array] = []
    for frame in frames:
        results = run({"input": frame[None], "state": state, "sr": rate})
        state = results["stateN"]
        probabilities.append(results["output"][0])
        states.append(state)
    return {"speech": np.concatenate(probabilities), "states": np.stack(states)}
