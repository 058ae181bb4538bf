"""Answers a key of a neuron-ls or neuron-monitor case about anything such a case can speak of.

Which words ask for which fact stands in `machine_keys` and `monitor_keys`; here is who is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from port.deep_cluster.machine import Machine, NeuronDevice, NeuronProcess
from port.deep_cluster.monitor_records import MonitorStream, RuntimeSample, Sample
from workbench.cases.key_rules import best_rule, key_words
from workbench.cases.machine_keys import DEVICE_RULES, MACHINE_RULES, PROCESS_RULES, Ways
from workbench.cases.monitor_keys import RUNTIME_RULES, SAMPLE_RULES, STREAM_RULES

_SAME = {
    "chip": "device", "neuroncore": "core", "nc": "core", "mem": "memory", "hbm": "memory", "size": "bytes",
    "byte": "bytes", "ids": "id", "index": "id", "indice": "id", "proc": "process", "processe": "process",
    "util": "utilization", "utilisation": "utilization", "percent": "utilization", "pct": "utilization",
    "config": "lnc", "connected": "link", "connection": "link", "neighbor": "link", "neighbour": "link",
    "err": "error", "record": "sample", "exec": "execution", "nan": "numerical", "addresse": "address",
    "equals": "equal", "num": "count", "number": "count", "nr": "count", "n": "count",
}  # fmt: skip
"""Words of a key that mean the same, by their singular."""
_FILLERS = frozenset({"count", "neuron", "of", "in", "by", "to", "the", "is", "are", "visible", "list", "all"})


Subject = Machine | NeuronDevice | NeuronProcess | MonitorStream | Sample | RuntimeSample
"""What a key can ask about."""

_RULES: Mapping[type, tuple[tuple[str, Callable[..., Ways]], ...]] = {
    Machine: MACHINE_RULES,
    NeuronDevice: DEVICE_RULES,
    NeuronProcess: PROCESS_RULES,
    MonitorStream: STREAM_RULES,
    Sample: SAMPLE_RULES,
    RuntimeSample: RUNTIME_RULES,
}


def answer(subject: Subject, key: str) -> Ways | None:
    """Return the ways to answer a key, the plainest first; None where no rule knows the words of the key."""
    fact = best_rule(key_words(key, _SAME), _RULES[type(subject)], _FILLERS)
    if fact is not None:
        return fact(subject)
    if isinstance(subject, MonitorStream):
        # What is asked without a sample is asked of the last one: its counters are the newest.
        return answer(subject.samples[-1], key) if subject.samples else None
    return _of_runtimes(subject, key) if isinstance(subject, Sample) else None


def plain(subject: Subject) -> object:
    """Return the number that stands for a subject where no more than which one it is is asked for."""
    if isinstance(subject, NeuronDevice):
        return subject.index
    if isinstance(subject, NeuronProcess | RuntimeSample):
        return subject.pid
    return subject.line if isinstance(subject, Sample) else None


def _of_runtimes(sample: Sample, key: str) -> Ways | None:
    """Return the answer of the only runtime, the answers by pid of several, or what an idle machine answers."""
    if not sample.runtimes:
        return None if answer(RuntimeSample(pid=None), key) is None else (None, [], {})
    about = [answer(runtime, key) for runtime in sample.runtimes]
    if len(about) == 1 or about[0] is None:
        return about[0]
    answers = [ways[0] for ways in about if ways]
    return ({str(runtime.pid): one for runtime, one in zip(sample.runtimes, answers, strict=True)}, answers)
