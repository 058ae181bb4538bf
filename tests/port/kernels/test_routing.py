"""Routing: affinities at every size of logit, the bias in the choice only, ties to the lower expert."""

import math

import pytest
import torch

from port.kernels.routing import affinities, route


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


@pytest.mark.parametrize("logit", [-80.0, -30.0, -5.0, -1.0, 0.0, 0.5, 19.9, 20.1, 80.0])
def test_affinity_is_the_root_of_softplus(logit):
    found = affinities(torch.tensor([[logit]])).item()
    assert found == pytest.approx(math.sqrt(softplus(logit)), rel=1e-6)


def test_weights_worked_by_hand():
    # softplus(x) = 1, 4, 9 exactly where exp(x) = e - 1, e^4 - 1, e^9 - 1
    logits = torch.tensor([[math.log(math.expm1(square)) for square in (1.0, 4.0, 9.0)]])
    ids, weights = route(logits, torch.zeros(3), topk=2, scaling=1.5)
    assert ids.tolist() == [[2, 1]]
    torch.testing.assert_close(weights, torch.tensor([[1.5 * 3 / 5, 1.5 * 2 / 5]]))


def test_bias_moves_the_choice_and_not_the_weights():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    ids, weights = route(logits, torch.tensor([0.0, 0.0, 0.0, 10.0]), topk=2, scaling=1.0)
    assert ids.tolist() == [[3, 0]]
    low, high = math.sqrt(softplus(0.0)), math.sqrt(softplus(3.0))
    torch.testing.assert_close(weights, torch.tensor([[low / (low + high), high / (low + high)]]))


def test_equal_experts_go_by_id():
    ids, _ = route(torch.tensor([[1.0, 2.0, 2.0, 2.0, 1.0]]), torch.zeros(5), topk=2, scaling=1.0)
    assert ids.tolist() == [[1, 2]]


def test_agrees_with_a_loop():
    generator = torch.Generator().manual_seed(0)
    logits, bias = torch.randn(20, 7, generator=generator) * 4, torch.randn(7, generator=generator)
    ids, weights = route(logits, bias, topk=3, scaling=2.5)
    for t in range(20):
        affinity = [math.sqrt(softplus(value)) for value in logits[t].tolist()]
        order = sorted(range(7), key=lambda expert: (-(affinity[expert] + bias[expert].item()), expert))[:3]
        assert ids[t].tolist() == order
        total = sum(affinity[expert] for expert in order)
        torch.testing.assert_close(weights[t], torch.tensor([affinity[expert] / total * 2.5 for expert in order]))
