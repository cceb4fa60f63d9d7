"""Speech-like audio for voice activity detectors, synthesised as a source and a filter [Fant 1960].

A voiced sound is a sum of harmonics of a gliding pitch, weighted by the resonances of a vowel; an
unvoiced one is noise around the band of a fricative; syllables of both alternate with near silence.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Signal = NDArray[np.float64]

VOWELS = (
    (730.0, 1090.0, 2440.0),
    (270.0, 2290.0, 3010.0),
    (300.0, 870.0, 2240.0),
    (530.0, 1840.0, 2480.0),
    (570.0, 840.0, 2410.0),
)
"""The first three resonances, in Hz, of average male vowels [Peterson & Barney 1952]."""

BANDWIDTH_HZ = 90.0
SYLLABLE_SECONDS = 0.22
RECURRENT_SIZE = 128


@dataclass(frozen=True)
class Framing:
    """How silero-vad cuts audio: each call sees `window` new samples after `context` old ones."""

    rate_hz: int
    window: int
    context: int


AT_16_KHZ = Framing(rate_hz=16_000, window=512, context=64)
AT_8_KHZ = Framing(rate_hz=8_000, window=256, context=32)


def _envelope(samples: int) -> Signal:
    """Returns the loudness {samples} of one syllable, rising fast and falling slowly."""
    time = np.linspace(0.0, 1.0, samples)
    loudness: Signal = np.minimum(1.0, time / 0.15) * np.minimum(1.0, (1.0 - time) / 0.35)
    return loudness


def _voiced(draw: np.random.Generator, samples: int, rate_hz: int) -> Signal:
    """Returns a vowel {samples} whose pitch glides."""
    pitch_hz = np.linspace(draw.uniform(100, 180), draw.uniform(90, 160), samples)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / rate_hz
    formants = VOWELS[int(draw.integers(len(VOWELS)))]
    wave = np.zeros(samples)
    for harmonic in range(1, int(rate_hz / 2 / pitch_hz.max())):
        frequency = harmonic * pitch_hz
        gain = sum(
            1.0 / (order * np.hypot(1.0, (frequency - center) / BANDWIDTH_HZ))
            for order, center in enumerate(formants, start=1)
        )
        wave += gain * np.sin(harmonic * phase) / harmonic**0.5
    wave /= np.abs(wave).max()
    return wave


def _unvoiced(draw: np.random.Generator, samples: int, rate_hz: int) -> Signal:
    """Returns a fricative {samples}: noise of the upper frequencies."""
    frequencies = np.fft.rfftfreq(samples, 1.0 / rate_hz)
    shape = np.exp(-(((frequencies - 0.32 * rate_hz) / (0.1 * rate_hz)) ** 2))
    wave = np.fft.irfft(np.fft.rfft(draw.standard_normal(samples)) * shape, samples)
    return np.asarray(0.3 * wave / np.abs(wave).max())


def speech(seed: int, seconds: float, rate_hz: int) -> Floats:
    """Returns speech-like audio {seconds * rate_hz} in -1..1, with faint background noise."""
    draw = np.random.default_rng(seed)
    total = int(seconds * rate_hz)
    wave = 0.001 * draw.standard_normal(total)
    start = int(0.05 * rate_hz)
    while start < total:
        length = int(SYLLABLE_SECONDS * rate_hz * draw.uniform(0.7, 1.3))
        consonant = int(length * draw.uniform(0.1, 0.35))
        syllable = np.concatenate(
            [_unvoiced(draw, consonant, rate_hz), _voiced(draw, length - consonant, rate_hz)]
        )
        stop = min(total, start + length)
        wave[start:stop] += (0.5 * _envelope(length) * syllable)[: stop - start]
        start = stop + int(draw.exponential(0.04) * rate_hz)
    return np.asarray(wave, np.float32)


def frames(seed: int, count: int, framing: Framing) -> Floats:
    """Returns `count` consecutive frames {count, context + window} of speech."""
    samples = count * framing.window + framing.context
    wave: Floats = speech(seed, (samples + 1) / framing.rate_hz, framing.rate_hz)
    starts = np.arange(count)[:, None] * framing.window
    result: Floats = wave[starts + np.arange(framing.context + framing.window)]
    return result


def frame(seed: int, framing: Framing) -> Floats:
    """Returns one frame {1, context + window} from the middle of a second of speech."""
    count = framing.rate_hz // framing.window
    return frames(seed, count, framing)[count // 2 : count // 2 + 1]


def recurrent_state(seed: int, *leading: int) -> Floats:
    """Returns a recurrent state {*leading, 128} as an LSTM keeps it, within -1..1."""
    draw = np.random.default_rng([seed, 3])
    state = np.tanh(0.5 * draw.standard_normal((*leading, RECURRENT_SIZE)))
    return state.astype(np.float32)
