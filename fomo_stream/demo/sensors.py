"""A simulated sensor stream: a pump under changing load, with injected faults.

Ten quantities follow the load, a daily cycle (sped up) and common noise. Readings are rounded like those of
instruments, and some are missing. From time to time a fault of one of these kinds is injected:

spike               one reading of one sensor is far off
stuck               one sensor repeats an old reading, while the others continue
drift               one sensor moves away, a little more with each reading
broken correlation  one sensor follows the load in reverse; each single value is normal
vibration burst     all vibration sensors shake at once
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

DAY_READINGS = 100_000  # readings in one cycle
MEAN_LOAD_READINGS = 20  # mean readings under one load
LOADS = (0.15, 0.5, 0.9)
MISSING_SHARE = 0.003
BLOCK = 256  # readings drawn at once, only for speed
# Readings that a fault lasts.
FAULT_READINGS = {"spike": 1, "stuck": 10, "drift": 16, "broken correlation": 5, "vibration burst": 5}


@dataclass(frozen=True)
class Sensor:
    """The behaviour of one quantity, in its own unit."""

    name: str
    centre: float  # at half load
    load: float  # change from no load to full load
    cycle: float  # amplitude over a day
    noise: float  # standard deviation
    step: float  # rounding of the instrument

    @property
    def spread(self) -> float:
        """Typical distance from the centre."""
        return self.noise + 0.3 * abs(self.load) + 0.7 * abs(self.cycle)


PUMP = (
    Sensor("temperature_c", 62.0, 9.0, 2.0, 0.3, 0.1),
    Sensor("pressure_bar", 6.2, 1.6, 0.0, 0.06, 0.01),
    Sensor("vibration_x_mm_s", 2.1, 0.7, 0.0, 0.12, 0.01),
    Sensor("flow_m3_h", 84.0, 38.0, 0.0, 1.2, 0.1),
    Sensor("vibration_y_mm_s", 1.8, 0.5, 0.0, 0.1, 0.01),
    Sensor("current_a", 31.0, 14.0, 0.0, 0.4, 0.1),
    Sensor("vibration_z_mm_s", 1.2, 0.3, 0.0, 0.08, 0.01),
    Sensor("speed_rpm", 1480.0, 260.0, 0.0, 4.0, 1.0),
    Sensor("valve_pct", 55.0, 60.0, 0.0, 0.6, 0.5),
    Sensor("humidity_pct", 48.0, 0.0, -6.0, 0.8, 0.5),
)


Readings = Iterator[tuple[dict[str, Any], str | None]]


def sensor_stream(seed: int = 0, fault_every: float = 1500.0, first_fault: int = 1000) -> Readings:
    """Yield (record, name of the fault in it or None), endlessly; the same for the same arguments.

    A record holds the pump's name, a running number `reading`, and one rounded value or None for each sensor of
    `PUMP`. fault_every: mean number of readings between two faults; none begins before `first_fault`.

    >>> record, fault = next(sensor_stream())
    >>> sorted(record)[:5], fault
    (['current_a', 'flow_m3_h', 'humidity_pct', 'pressure_bar', 'pump'], None)
    """
    rng = np.random.default_rng(seed)
    steps = np.array([s.step for s in PUMP])
    highest = np.array([100.0 if "_pct" in s.name else np.inf for s in PUMP])
    digits = [max(0, int(np.ceil(-np.log10(s.step)))) for s in PUMP]
    faults = Faults(rng, fault_every, first_fault)
    number = 0
    for loads, block in ordinary_readings(rng):
        lost = rng.random(block.shape) < MISSING_SHARE
        for load, values, gone in zip(loads.tolist(), block, lost, strict=True):
            values, fault = faults.apply(number, load, values)
            exact = np.clip(np.round(values / steps) * steps, 0.0, highest).tolist()
            record: dict[str, Any] = {"pump": "P-101", "reading": number}
            for sensor, value, places, is_gone in zip(PUMP, exact, digits, gone.tolist(), strict=True):
                record[sensor.name] = None if is_gone else round(value, places)
            yield record, fault
            number += 1


def ordinary_readings(rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield endless blocks of (load (BLOCK,) in [0, 1], values (BLOCK, n_sensors) without faults)."""
    centre, load_gain, cycle_gain, noise = (
        np.array([getattr(s, part) for s in PUMP]) for part in ("centre", "load", "cycle", "noise")
    )
    slow = np.array([s.name.startswith("temperature") for s in PUMP])
    shaking = np.array([s.name.startswith("vibration") for s in PUMP])
    hydraulic = np.array([s.name.startswith(("pressure", "flow", "current")) for s in PUMP])
    target = load = heat = LOADS[1]
    wobble = 0.0
    start = 0
    while True:
        jumps, shocks = rng.random(BLOCK) < 1 / MEAN_LOAD_READINGS, rng.normal(size=BLOCK)
        loads, heats, wobbles = np.empty((3, BLOCK))
        for i in range(BLOCK):
            if jumps[i]:
                target = rng.choice([other for other in LOADS if other != target])
            load += (target - load) / 6  # valves and motors react slowly,
            heat += (load - heat) / 15  # and metal more slowly
            wobble += -wobble / 8 + 0.5 * shocks[i]
            loads[i], heats[i], wobbles[i] = load, heat, wobble
        loads += 0.06 * rng.normal(size=BLOCK)  # demand is never constant
        cycle = np.cos(2 * np.pi * (start + np.arange(BLOCK)) / DAY_READINGS)
        shared = rng.normal(size=BLOCK)
        errors = rng.normal(size=(BLOCK, len(PUMP)))
        errors[:, shaking] = 0.5 * errors[:, shaking] + 0.85 * shared[:, None]
        errors[:, hydraulic] += 0.8 * wobbles[:, None]
        drive = np.where(slow, heats[:, None], loads[:, None]) - 0.5
        values = centre + load_gain * drive + cycle_gain * cycle[:, None] + noise * errors
        # the noise of a vibration is proportional to it
        values[:, shaking] *= np.exp(0.08 * rng.normal(size=(BLOCK, 1)))
        yield loads, values
        start += BLOCK


class Faults:
    """Chooses when a fault begins, and distorts the readings while it lasts."""

    def __init__(self, rng: np.random.Generator, every: float, first: int) -> None:
        self.rng, self.every = rng, every
        self.next_start = first + rng.exponential(every)
        self.vibrations = [i for i, s in enumerate(PUMP) if s.name.startswith("vibration")]
        self.driven = [i for i, s in enumerate(PUMP) if abs(s.load) > 5 * s.noise and i not in self.vibrations]
        self.recent: deque[np.ndarray] = deque(maxlen=300)
        self.kind = ""
        self.left = self.where = 0
        self.size = 0.0

    def apply(self, number: int, load: float, values: np.ndarray) -> tuple[np.ndarray, str | None]:
        """Return the values (n_sensors,) of reading `number` with a fault if one is due, and its name or None."""
        if not self.left and number >= self.next_start:
            self._begin(load, values)
        if not self.left:
            self.recent.append(values)
            return values, None
        values = values.copy()
        if self.kind == "spike":
            values[self.where] += self.size
        elif self.kind == "stuck":
            values[self.where] = self.size
        elif self.kind == "drift":
            values[self.where] += self.size * (FAULT_READINGS["drift"] - self.left + 1) / FAULT_READINGS["drift"]
        elif self.kind == "broken correlation":
            values[self.where] = 2 * PUMP[self.where].centre - values[self.where]
        else:
            values[self.vibrations] *= self.size
        self.left -= 1
        if not self.left:
            self.next_start = number + self.rng.exponential(self.every)
        return values, self.kind

    def _begin(self, load: float, values: np.ndarray) -> None:
        rng = self.rng
        kind = self.kind = str(rng.choice(list(FAULT_READINGS)))
        if kind in ("broken correlation", "stuck"):
            self.where = int(rng.choice(self.driven))
        else:
            self.where = int(rng.integers(len(PUMP)))
        if kind == "broken correlation" and abs(load - 0.5) < 0.25:
            return  # at half load the reverse looks the same: try again with the next reading
        self.left = FAULT_READINGS[kind]
        if kind == "stuck":
            old = np.array([row[self.where] for row in self.recent])
            self.size = float(old[np.argmax(np.abs(old - values[self.where]))])
        elif kind == "vibration burst":
            self.size = rng.uniform(2.0, 3.5)
        else:
            self.size = float(rng.choice([-1, 1])) * rng.uniform(5, 9) * PUMP[self.where].spread
