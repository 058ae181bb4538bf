"""neuron-monitor streams: what was read, what failed to be read, and what was cut off."""

from __future__ import annotations

import json

from port.deep_cluster.neuron_monitor import is_stream, parse_stream

_HARDWARE = {
    "neuron_device_type": "trainium2",
    "neuron_device_count": 16,
    "neuron_device_memory_size": 103079215104,
    "neuroncore_per_device_count": 4,
    "logical_neuroncore_config": 2,
    "error": "",
}


def sample(*runtimes: dict, **groups: object) -> str:
    return json.dumps({"neuron_runtime_data": list(runtimes), "neuron_hardware_info": _HARDWARE, **groups})


def runtime(**report: object) -> dict:
    return {"pid": 41, "neuron_runtime_tag": "mine", "error": "", "report": report}


def test_cores_per_device_are_logical_already() -> None:
    hardware = parse_stream(sample()).hardware
    assert (hardware.logical_core_count, hardware.physical_core_count) == (64, 128)
    assert hardware.memory_per_core_bytes == 24 * 1024**3


def test_an_idle_machine_has_no_runtimes() -> None:
    (only,) = parse_stream(sample()).samples
    assert (only.runtimes, only.errors, only.ecc("corrected")) == ((), (), None)


def test_a_counter_that_failed_is_unknown_and_never_nought() -> None:
    failed = {"neuroncores_in_use": {"0": {"neuroncore_utilization": 0}}, "error": "device busy"}
    (one,) = parse_stream(sample(runtime(neuroncore_counters=failed, memory_used={"error": "no"}))).samples
    (found,) = one.runtimes
    assert found.utilization is None
    assert (found.device_bytes, found.host_bytes, found.execution_counts) == (None, None, None)
    assert found.errors == (("neuroncore_counters", "device busy"), ("memory_used", "no"))
    assert [text for _, text in one.errors] == ["device busy", "no"]


def test_an_idle_core_is_nought_where_the_counter_was_read() -> None:
    counters = {"neuroncores_in_use": {"3": {"neuroncore_utilization": 0, "flops": 7}}, "error": ""}
    (found,) = parse_stream(sample(runtime(neuroncore_counters=counters))).samples[0].runtimes
    assert found.utilization == {3: 0}
    assert found.flops == {3: 7}


def test_bytes_of_cores_are_added_up_and_held_against_the_total() -> None:
    def used(total: int) -> dict:
        cores = {"0": {"tensors": 5, "model_code": 2}, "1": {"tensors": 3}}
        usage = {"host": {"tensors": 9}, "neuroncore_memory_usage": cores}
        return {"neuron_runtime_used_bytes": {"host": 9, "neuron_device": total, "usage_breakdown": usage}}

    found = [parse_stream(sample(runtime(memory_used=used(total)))).samples[0].runtimes[0] for total in (10, 11)]
    assert found[0].bytes_by_core == {0: 7, 1: 3}
    assert [one.is_breakdown_complete for one in found] == [True, False]
    assert found[0].host_breakdown == {"tensors": 9}


def test_loaded_models_and_executions_are_kept() -> None:
    parts = {"sg_00": {"memory_used_bytes": {"host": 1, "neuron_device": 6}, "neuroncore_index": 2}}
    models = [{"name": "a.neff", "model_id": 10001, "is_running": True, "subgraphs": parts}]
    stats = {"error_summary": {"hardware": 1}, "execution_summary": {"timed_out": 3},
             "latency_stats": {"total_latency": {"p99": 0.5}, "device_latency": None}}  # fmt: skip
    (found,) = (
        parse_stream(sample(runtime(memory_used={"loaded_models": models}, execution_stats=stats))).samples[0].runtimes
    )
    assert (found.models[0].device_bytes, found.models[0].core_ids) == (6, (2,))
    assert (found.error_counts, found.execution_counts) == ({"hardware": 1}, {"timed_out": 3})
    assert found.latency_s == {"total": {"p99": 0.5}}


def test_memory_errors_of_all_devices_are_added_up() -> None:
    devices = [{"neuron_device_index": at, "mem_ecc_corrected": 2, "sram_ecc_uncorrected": at} for at in range(3)]
    system = {"neuron_hw_counters": {"neuron_devices": devices, "error": ""}}
    (one,) = parse_stream(sample(system_data=system)).samples
    assert (one.ecc("corrected"), one.ecc("uncorrected")) == (6, 3)
    system["neuron_hw_counters"]["error"] = "no access"
    (one,) = parse_stream(sample(system_data=system)).samples
    assert (one.ecc("corrected"), one.errors) == (None, (("neuron_hw_counters", "no access"),))


def test_hardware_beside_an_error_is_not_trusted() -> None:
    broken = {**dict.fromkeys(_HARDWARE, 0), "error": "no driver"}
    stream = parse_stream(sample(neuron_hardware_info=broken))
    assert stream.hardware.device_count is None
    assert stream.errors == ("no driver",)


def test_a_cut_last_line_is_partial_and_the_rest_is_kept() -> None:
    text = f"{sample()}\n{sample(runtime())}\n{sample(runtime())[:80]}"
    stream = parse_stream(text)
    assert (len(stream.samples), stream.is_last_line_partial, stream.pids) == (2, True, (41,))


def test_lines_in_between_that_are_no_samples_are_counted() -> None:
    stream = parse_stream(f"started\n{sample()}\n[1]\n{sample()}\n\n")
    assert (len(stream.samples), stream.is_last_line_partial) == (2, False)
    assert [number for number, _ in stream.unreadable] == [1, 3]


def test_one_document_over_several_lines_is_a_sample_too() -> None:
    text = json.dumps(json.loads(sample()), indent=1)
    assert is_stream(text)
    assert len(parse_stream(text).samples) == 1


def test_nothing_is_an_empty_stream() -> None:
    assert parse_stream("").samples == ()
    assert not is_stream('[{"neuron_device": 0}]')
    json.dumps(parse_stream(sample(runtime())).to_dict())


def test_no_text_whatever_makes_it_raise() -> None:
    counters = {"neuroncores_in_use": {"0": {"neuroncore_utilization": 1.5}}, "error": ""}
    whole = sample(runtime(neuroncore_counters=counters), system_data={"memory_info": {}})
    for cut in range(0, len(whole), 3):
        for piece in ("null", "5", '"x"', "[]", "{}"):
            parse_stream(whole[:cut] + piece + whole[cut + 4 :]).to_dict()
        assert parse_stream(f"{whole}\n{whole[: cut + 1]}").samples[0].runtimes[0].utilization == {0: 1.5}
    for key in ("neuron_runtime_data", "system_data", "neuron_hardware_info", "instance_info"):
        for value in (None, 5, "x", [1], {"a": 1}):
            assert len(parse_stream(json.dumps({key: value})).samples) == 1


def test_log_lines_before_the_stream_are_passed_over() -> None:
    text = 'time="t" level=info msg="starting"\n' + sample()
    assert is_stream(text)
    assert len(parse_stream(text).samples) == 1
