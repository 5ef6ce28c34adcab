"""Parts and their composition."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from motley.client.correct import control_variates
from motley.client.objective import proximal
from motley.core.errors import ConflictError, InputError, UnknownNameError
from motley.core.hooks import HOOKS
from motley.core.part import PARTS, Part, compose
from motley.core.schedule import Linear
from motley.methods import METHODS, make_method
from motley.server.step import mix_with_previous, server_momentum


def nothing(*_: Any, **__: Any) -> Any:
    return None


def test_a_part_knows_its_name_its_arguments_and_its_hooks() -> None:
    part = proximal(mu=0.5)
    assert (part.name, part.seam, part.filled, part.arguments) == ("proximal", "objective", ("penalty",), {"mu": 0.5})
    assert repr(part) == "proximal(mu=0.5)"
    assert proximal(0.5) == proximal(mu=0.5) != proximal()
    assert hash(proximal(0.5)) == hash(proximal(mu=0.5))
    assert part != "proximal"
    assert Part(name="a") != Part(name="a")


def test_every_hook_of_the_table_is_a_field_of_a_part() -> None:
    everything: dict[str, Any] = dict.fromkeys(HOOKS, nothing)
    assert Part(name="all", **everything).filled == tuple(HOOKS)


def test_one_filler_of_a_hook_and_the_refusal_names_both() -> None:
    a, b = Part(name="by_loss", select=nothing), Part(name="by_luck", select=nothing)
    with pytest.raises(ConflictError, match=r"'by_loss' and 'by_luck' both decide who trains \(hook 'select'\)"):
        compose(a, b)
    with pytest.raises(ConflictError, match="'median' and 'krum' both decide how updates become one model"):
        compose(Part(name="median", merge=nothing), proximal(), Part(name="krum", merge=nothing))


def test_a_part_may_refuse_another() -> None:
    shy = Part(name="shy", refuses={"proximal": "one pulls, the other pushes"})
    for items in ((shy, proximal()), (proximal(), shy)):
        with pytest.raises(ConflictError, match=r"'shy' and 'proximal' cannot be combined: one pulls, the other push"):
            compose(*items)
    compose(shy, control_variates())


def test_the_same_part_twice_is_one_and_with_other_arguments_refused() -> None:
    method = compose(proximal(0.1), compose(proximal(0.1), control_variates()))
    assert [part.name for part in method.parts] == ["proximal", "control_variates"]
    with pytest.raises(ConflictError, match=r"twice with different arguments: proximal\(mu=0.1\) and proximal\(mu=0.2"):
        compose(proximal(0.1), proximal(0.2))


def test_order_of_composition_is_the_order_of_a_chain() -> None:
    a, b = mix_with_previous(), server_momentum()
    assert [name for name, _ in compose(a, b).hooks("step")] == ["mix_with_previous", "server_momentum"]
    assert [name for name, _ in compose(b, a).hooks("step")] == ["server_momentum", "mix_with_previous"]


def test_protocols_are_inherited_and_conflicts_name_both_methods() -> None:
    late = compose(proximal(), protocol="late", options={"wait": 3}, name="slowpokes")
    buffered = compose(control_variates(), protocol="buffered", name="bucket")
    both = compose(late, mix_with_previous())
    assert (both.protocol, both.options) == ("late", {"wait": 3})
    assert compose(late, options={"wait": 4, "x": 1}).options == {"wait": 4, "x": 1}
    with pytest.raises(ConflictError, match="'slowpokes' needs the late protocol and 'bucket' needs the buffered"):
        compose(late, buffered)
    assert compose(late, buffered, protocol="late").protocol == "late"
    assert compose(proximal()).protocol == "synchronous"


def test_a_method_prints_who_fills_which_seam() -> None:
    text = repr(make_method("fedprox(mu=0.1)+ama"))
    assert text.startswith("fedprox(mu=0.1)+ama on the synchronous protocol")
    assert "objective  proximal(mu=0.1) fills penalty" in text
    assert "step       mix_with_previous(" in text
    assert "select     default: uniform without replacement" in text
    assert "step       default" not in text


def test_methods_pickle_with_their_arguments() -> None:
    method = compose(proximal(mu=Linear(0.1, 0.01)), control_variates(), options={"a": 1}, name="both")
    copy = pickle.loads(pickle.dumps(method))
    assert (copy.name, copy.parts, copy.options) == ("both", method.parts, {"a": 1})
    assert copy.parts[0].dials == {"mu": Linear(0.1, 0.01)}
    with pytest.raises(InputError, match="'home' was made by hand"):
        pickle.dumps(compose(Part(name="home")))


def test_parts_need_names() -> None:
    with pytest.raises(InputError, match="A part needs a name"):
        compose(Part())


def test_methods_from_text() -> None:
    method = make_method("fedprox + mix_with_previous(alpha=0.3)", {"fedprox": {"mu": 0.7}})
    assert method.parts == (proximal(0.7), make_method("partial_work").parts[0], mix_with_previous(0.3))
    with pytest.raises(UnknownNameError, match=r"no method or part named 'fedpox'; did you mean 'fedprox'\?"):
        make_method("fedpox")
    with pytest.raises(InputError, match="params are given for 'ama', which is not in the method 'fedavg'"):
        make_method("fedavg", {"ama": {"alpha0": 0.1}})
    with pytest.raises(InputError, match="its arguments are: mu, partial"):
        make_method("fedprox(nu=3)")


NAMESAKES = sorted(set(PARTS.entries) & set(METHODS.entries))


def test_some_parts_are_named_like_methods() -> None:
    assert {"oort", "power_of_choice"} <= set(NAMESAKES)


OTHERS: dict[type, Callable[[Any], Any]] = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value / 2,
}


@pytest.mark.parametrize("name", NAMESAKES)
def test_every_argument_of_such_a_part_is_reached_by_the_short_form(name: str) -> None:
    defaults = PARTS[name].parameters
    assert METHODS[name].parameters == defaults
    for argument, default in defaults.items():
        value = OTHERS[type(default)](default)
        method = make_method(f"{name}({argument}={value})")
        assert method.name == f"{name}({argument}={value})"
        (made,) = method.parts
        assert (made.name, made.arguments) == (name, {**defaults, argument: value})


@pytest.mark.parametrize("name", NAMESAKES)
def test_such_a_method_has_words_of_its_own_and_refuses_like_the_part(name: str) -> None:
    assert METHODS[name].summary != PARTS[name].summary
    with pytest.raises(InputError, match=f"its arguments are: {', '.join(PARTS[name].parameters)}"):
        make_method(f"{name}(nonsense=1)")
