"""Clamps as text: what is read, what units mean, and what is refused with which words."""

import types

import numpy as np
import pytest

from interp.clamp import (
    Setting,
    Value,
    check_neurons,
    measure,
    metadata,
    parse_clamp,
    parse_positions,
    parse_value,
    parse_values,
    resolve,
)
from jaxllm.clamp import NeuronClamp
from jaxllm.errors import UserError

NATURAL = types.SimpleNamespace(mean=[1.0, -2.0], std=[0.5, 2.0], min=[-3.0, -7.0], max=[4.0, 3.5])


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("-30", -30, ""),
        ("3sd", 3, "sd"),
        ("-2.5sd", -2.5, "sd"),
        ("1.5std", 1.5, "sd"),
        ("max", 1, "max"),
        ("min", 1, "min"),
        ("-max", -1, "max"),
        ("2 max", 2, "max"),
        ("+4", 4, ""),
        (".5", 0.5, ""),
        ("1e3", 1000, ""),
        (" 7 ", 7, ""),
    ],
)
def test_values(text: str, number: float, unit: str):
    assert parse_value(text) == Value(number, unit)
    assert parse_value(str(parse_value(text))) == Value(number, unit)


@pytest.mark.parametrize("text", ["", "x", "sd", "--3", "3foo", "nan", "inf", "-inf", "3 4", "٣", "0x10", "1_000", "3sd4"])
def test_other_values_are_refused_with_the_forms(text: str):
    with pytest.raises(UserError, match=r"is not a value; write a number such as -30.*3sd.*max, min"):
        parse_value(text)


def test_a_number_beyond_floats_is_refused():
    with pytest.raises(UserError, match="finite"):
        parse_value("1e999")


def test_units_are_those_of_the_neuron():
    # By hand: mean + 3 * std; a multiple of the extreme; and, where the value is added, standard deviations alone.
    assert parse_value("3sd").absolute(NATURAL, 0) == 2.5
    assert parse_value("-2sd").absolute(NATURAL, 1) == -6
    assert parse_value("3sd").absolute(NATURAL, 0, mode="add") == 1.5
    assert parse_value("max").absolute(NATURAL, 1) == 3.5
    assert parse_value("2min").absolute(NATURAL, 0) == -6
    assert parse_value("-30").absolute(None, 0) == -30


def test_a_clamp_is_neuron_and_value():
    assert parse_clamp("L29/N1342=-30") == Setting(29, 1342, Value(-30))
    assert parse_clamp("l0/n7 = 3sd", site="product", mode="add") == Setting(0, 7, Value(3, "sd"), "product", "add")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("L29/N1342", "has no value; write neuron and value, such as L29/N1342=-30"),
        ("29/1342=3", "is not a neuron; write layer and number as in L12/N345"),
        ("L29/N1342=", "'L29/N1342=': '' is not a value"),
        ("L1/N2=3=4", "'3=4' is not a value"),
    ],
)
def test_a_wrong_clamp_is_named(text: str, message: str):
    with pytest.raises(UserError, match=message):
        parse_clamp(text)


def test_a_scale_has_no_unit():
    with pytest.raises(UserError, match="a scale is a factor without unit"):
        parse_clamp("L1/N2=3sd", mode="scale")


def test_dose_values():
    assert [v.number for v in parse_values("-100:100:9")] == [-100, -75, -50, -25, 0, 25, 50, 75, 100]
    assert [str(v) for v in parse_values("-2sd:2sd:5")] == ["-2sd", "-1sd", "0sd", "1sd", "2sd"]
    assert [str(v) for v in parse_values("-30, 0,max")] == ["-30", "0", "max"]


@pytest.mark.parametrize("text", ["1:2", "1:2:x", "1:2:1", "1:2sd:3", "1:2:3:4", "1,,2", "0:1:1001", ":", "0:1:-3"])
def test_other_dose_values_are_refused(text: str):
    with pytest.raises(UserError):
        parse_values(text)


def test_positions():
    assert [parse_positions(t) for t in ("all", "prompt", "generated", "last")] == ["all", "prompt", "generated", "last"]
    assert parse_positions("0, 3,4") == (0, 3, 4)
    for wrong in ("", "first", "-1", "1;2", "1,", "0:3"):
        with pytest.raises(UserError, match="positions of the prompt such as 0,3,4"):
            parse_positions(wrong)


def test_resolving_keeps_the_value_and_its_unit():
    settings = [parse_clamp("L1/N2=3sd"), parse_clamp("L3/N4=-30", site="gate_pre")]
    measured = measure(settings, lambda neurons, site: types.SimpleNamespace(mean=[1.0], std=[0.5], min=[-3.0], max=[4.0]))
    clamps = resolve(settings, measured)
    assert clamps == [NeuronClamp(1, 2, 2.5), NeuronClamp(3, 4, -30.0, site="gate_pre")]
    facts = metadata(settings, clamps)
    assert [(f["written"], f["unit"], f["value"]) for f in facts] == [("3sd", "sd", 2.5), ("-30", "absolute", -30.0)]
    assert np.isnan(measured.mean[1])  # not measured at the gate


def test_each_site_is_measured_once_for_all_its_neurons():
    asked = []

    def natural(neurons, site):
        asked.append((tuple(neurons), site))
        values = np.arange(len(neurons), dtype=float)
        return types.SimpleNamespace(mean=values, std=values, min=values, max=values)

    settings = [parse_clamp("L1/N2=1sd"), parse_clamp("L1/N3=1sd", site="product"), parse_clamp("L1/N4=1sd")]
    assert measure(settings, natural).mean.tolist() == [0, 0, 1]
    assert asked == [(((1, 2), (1, 4)), "up"), (((1, 3),), "product")]


def test_units_need_a_site_that_is_measured():
    with pytest.raises(UserError, match="L1/N2=3sd: site gate_act takes plain numbers; units are measured at up and product"):
        resolve([parse_clamp("L1/N2=3sd", site="gate_act")], None)


def test_a_neuron_that_the_model_does_not_have(tiny_config):
    with pytest.raises(UserError, match="L3/N0: the model has layers 0 to 2 and neurons 0 to 47"):
        check_neurons(tiny_config, [(2, 47), (3, 0)])
