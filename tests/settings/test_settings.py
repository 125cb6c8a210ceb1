"""Where settings come from, which source wins, and how mistakes are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flag_tables import SETTINGS

from fomo_stream.cli.parser import choices_of, parse
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.errors import ConfigError, FomoWarning
from fomo_stream.limits import MAX_RECORD_BYTES
from fomo_stream.settings.commands import DemoSettings, DoctorSettings, GroupSettings, RedriveSettings, ScoreSettings
from fomo_stream.settings.notify import NotifySettings
from fomo_stream.settings.removed import REMOVED, RENAMED
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import BaseFlags, command_line, extra_of, load, option


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fomo.toml"
    file.write_text('topic = "t"\nbatch-size = 1\nmax_latency_ms = 2\nadapt-after = 3\n')
    monkeypatch.setenv("FOMO_CONFIG", str(file))
    monkeypatch.setenv("FOMO_BATCH_SIZE", "10")
    monkeypatch.setenv("FOMO_MAX_LATENCY_MS", "20")
    settings = load(ServiceSettings, {"batch_size": "100"})
    assert (settings.batch_size, settings.max_latency_ms, settings.adapt_after) == (100, 20, 3)
    assert settings.max_record_bytes == MAX_RECORD_BYTES


def test_client_settings_are_merged_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fomo.toml"
    file.write_text('[kafka]\nsecurity.protocol = "SSL"\n"linger.ms" = 5\n"socket.keepalive.enable" = true\n')
    monkeypatch.setenv("FOMO_KAFKA_SASL_PASSWORD", "secret")
    monkeypatch.setenv("fomo_kafka_linger_ms", "6")  # also in small letters
    settings = load(ServiceSettings, {"topic": "t", "config": file, "kafka": {"security.protocol": "SASL_SSL"}})
    assert settings.kafka == {
        "security.protocol": "SASL_SSL",
        "linger.ms": "6",
        "socket.keepalive.enable": "true",
        "sasl.password": "secret",
    }


def test_client_settings_are_never_shown() -> None:
    settings = load(ServiceSettings, {"topic": "t", "kafka": {"sasl.password": "hunter2"}})
    assert "hunter2" not in repr(settings) + str(settings)
    with pytest.raises(ConfigError) as error:
        load(ServiceSettings, {"topic": "t", "kafka": {"group.id": "hunter2"}})
    assert "hunter2" not in str(error.value)


def test_null_in_the_file_is_the_default_also_against_a_setting_for_all_topics(tmp_path: Path) -> None:
    """As in Helm: a key without a value is not a mistake."""
    (file := tmp_path / "c.yaml").write_text(
        "derive:\nalert-rate: ~\nkey: machine\nlags: 3\ntopics: {a: {key: null, lags: null}, b: {}}"
    )
    a, b = (load(ServiceSettings, {"config": file, "topic": topic}) for topic in "ab")
    assert (a.key, a.lags, a.derive, a.alert_rate) == (None, 0, (), DetectorConfig.alert_rate)
    assert (b.key, b.lags, b.derive) == ("machine", 3, ())
    file.write_text("topic: null")
    with pytest.raises(ConfigError, match="topic"):
        load(ServiceSettings, {"config": file})


def test_topics_may_clash_only_where_the_others_are_those_of_a_group() -> None:
    for topics in ({"out": "t"}, {"alerts": "t-scores"}, {"out": "none"}):
        assert load(GroupSettings, {"topic": "t", **topics}).topic == "t"
        with pytest.raises(ConfigError, match=r"--out|--alerts"):
            load(DoctorSettings, {"topic": "t", **topics})


def test_defaults_are_the_detectors_own() -> None:
    assert load(ScoreSettings, {}).detector_config() == DetectorConfig(explain="alerts")
    changed: dict[str, Any] = {"admit": "feedback", "adapt_after": 0, "feedback_memory": 7}
    config = load(ServiceSettings, {"topic": "t", "feedback": "f", **changed}).detector_config()
    assert config == DetectorConfig(explain="alerts", **changed)
    # Without a feedback topic nothing is remembered for it.
    assert load(ServiceSettings, {"topic": "t", "feedback_memory": 9000}).detector_config().feedback_memory == 0


RANGE = "2026-10-02/2026-10-06"
OF_SERVICE: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": "0"}, "--batch-size 0: input should be greater than or equal to 1"),
    ({"out": "t"}, "must be different topics"),
    ({"alerts": "t-scores"}, "topic fomo-stream-t-state must be different topics"),
    ({"out": "none"}, "--out none needs --alerts"),
    ({"dead_letters": ".."}, "--dead-letters '..' cannot be the name of a topic"),
    ({"dead_letters": "none"}, "--dead-letters none: only --out takes this word"),
    ({"group": "my group"}, "the state topic 'my group-t-state' cannot be the name of a topic"),
    ({"feedback": "t-scores"}, "--feedback t-scores and the state topic"),
    ({"kafka": {"partition.assignment.strategy": "range"}}, "partitions move one at a time"),
    ({"kafka": {"enable.auto.commit": "true"}}, "enable.auto.commit cannot be set"),
    ({"admit": "none"}, "--admit none: input should be 'auto', 'feedback' or 'all'"),
    ({"features": ","}, "--features ,: name at least one feature"),
    ({"categorical": "a,b,a"}, "--categorical a,b,a: a feature is named twice"),
    ({"views": "slow"}, "there is no view slow; name some of default, fast, events, trimmed"),
    ({"views": "past"}, "view past needs --lags"),
    ({"seed_context": "missing.csv"}, "no such file: missing.csv"),
    ({"seed_context": "."}, "--seed-context .: it is a folder; name a file"),
    ({"seed_context": "/dev/null"}, "it is a pipe or a device, and it is read more than once"),
    ({"config": "missing.toml"}, "missing.toml: cannot be read as TOML: No such file"),
    *(({"instance_id": name}, "a broker takes 1 to 249 letters of ASCII") for name in ("größe-0", "x" * 260, "pod\n")),
    ({"kafka": {"client.id": " pod"}}, "a broker takes 1 to 249 letters of ASCII"),
]
MISTAKES: list[tuple[type[BaseFlags], dict[str, Any], str]] = [
    (GroupSettings, {"topic": "t", "group": "x/y"}, "the state topic 'x/y-t-state' cannot be"),
    (RedriveSettings, {"dead_letters": "d", "to": "a/b"}, "--to 'a/b' cannot be"),
    (NotifySettings, {"alerts": "a/b", "dry_run": True}, "--alerts 'a/b' cannot be"),
    *(
        (ScoreSettings, {"context": "normal.csv", **more}, "leave --lags, --derive and --key out")
        for more in ({"key": "device"}, {"derive": "new(kind)"}, {"lags": 2})
    ),
    (ScoreSettings, {"context": __file__, "reference": __file__}, "--context and --reference both name good records"),
    (ScoreSettings, {"derive": "new(kind), count(10m)"}, "--derive count(10m) of a file needs --time FIELD"),
    (ScoreSettings, {"derive": ["gap", "cuont(1m)"]}, "--derive gap,cuont(1m): cuont(1m): there is no such function"),
    (ScoreSettings, {"context_size": 50, "min_context": 60}, "scores would never begin"),
    (ScoreSettings, {"reference": "a" * 300}, "cannot be read: File name too long"),
    (ScoreSettings, {"reference": RANGE, "time": "t"}, "standard input is read once: for a range of --reference, name"),
    (ScoreSettings, {"reference": RANGE, "time": "t", "file": "none.csv"}, "no such file: none.csv"),
    (ReplaySettings, {"reference": RANGE, "file": "a.csv"}, f"--reference {RANGE} of a file needs --time FIELD"),
    (ReplaySettings, {"file": "a.csv", "silence": "1h"}, "--silence 1h: write how many times the usual gap, such as"),
    *(
        (ScoreSettings, {"missing_values": wrong}, "write FEATURE=NUMBER, as temp=-9999")
        for wrong in ("temp", "=-1", "temp=n/a", "temp=nan", {"temp": True}, {"temp": ["1 2"]})
    ),
    *((ServiceSettings, {"topic": "t", **flags}, words) for flags, words in OF_SERVICE),
]


@pytest.mark.parametrize(("command", "given", "words"), MISTAKES)
def test_a_mistake_is_reported_in_one_line_that_names_it(
    command: type[BaseFlags], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(command, given)
    assert words in str(error.value)
    assert "\n" not in str(error.value).replace("pod\n", "")


def test_a_flag_that_only_other_commands_have_is_refused_with_their_names() -> None:
    for command, flag, words in (
        (GroupSettings, "--json", "no flag --json: it is gone; group prints text"),
        (DemoSettings, "--format", "no flag --format: it is gone; .* JSON"),
        (ReplaySettings, "--out", "no flag --out: it is a flag of run, group, doctor"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse(command, [flag, "x"])


def test_names_that_a_broker_takes_are_taken() -> None:
    for name in ("team:a/0", "pod 1", ".."):
        flags = {"topic": "t", "instance_id": name, "kafka": {"client.id": name}}
        assert load(ServiceSettings, flags).instance_id == name


def test_a_mistake_in_the_environment_or_the_file_is_placed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fomo.toml"
    file.write_text('topic = "t"\nbatch-size = "many"\n')
    with pytest.raises(ConfigError, match=r"^--config .*/fomo.toml line 2: batch-size many: "):
        load(ServiceSettings, {"config": file})
    monkeypatch.setenv("FOMO_BATCH_SIZE", "few")
    with pytest.raises(ConfigError, match=r"^FOMO_BATCH_SIZE few: "):
        load(ServiceSettings, {"config": file})


def test_a_transaction_may_not_be_open_for_longer_than_the_broker_lets_it() -> None:
    quick = {"topic": "t", "kafka": {"session.timeout.ms": "6000"}}
    assert load(ServiceSettings, {**quick, "max_latency_ms": 18_000, "delivery": "at-least-once"})
    with pytest.raises(ConfigError, match=r"^--max-latency-ms must be at most 8000: .* third of session\.timeout\.ms"):
        load(ServiceSettings, {**quick, "max_latency_ms": 8001})
    settings = load(ServiceSettings, {**quick, "max_latency_ms": 8000})
    assert (settings.commit_interval_ms, settings.batch_age_ms) == (2000, 4000)


# --- names of environment variables

COMMANDS: list[tuple[type[BaseFlags], dict[str, Any]]] = [
    (ServiceSettings, {"topic": "t"}),
    (DemoSettings, {}),
    (ScoreSettings, {}),
    (RedriveSettings, {"dead_letters": "t"}),
]


def test_a_misspelt_variable_is_refused_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, words in (
        ("fomo_alert_raet", r"unknown setting FOMO_ALERT_RAET; did you mean FOMO_ALERT_RATE\?"),
        ("FOMO_KAKFA_SASL_PASSWORD", "unknown setting FOMO_KAKFA_SASL_PASSWORD; see --help"),
    ):
        monkeypatch.setenv(name, "8081")
        for settings, flags in COMMANDS:
            with pytest.raises(ConfigError, match=words) as error:
                load(settings, flags)
            assert "8081" not in str(error.value)
        monkeypatch.delenv(name)


def test_variables_of_other_commands_and_of_clients_are_no_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, _ in COMMANDS:
        for name in set(settings.model_fields) - {"config"}:
            monkeypatch.setenv(f"FOMO_{name.upper()}", "")  # known, and as if it was not there
    monkeypatch.setenv("FOMO_KAFKA_SASL_PASSWORD", "secret")
    monkeypatch.setenv("fomo_config", "")
    for settings, flags in COMMANDS:
        load(settings, flags)
    monkeypatch.setenv("FOMO_TOPIC", "sensors")
    assert load(ScoreSettings, {}).file == "-"


@pytest.mark.parametrize("service", ["FOMO", "FOMO_KAFKA", "FOMO_HEALTH"])
def test_what_kubernetes_says_of_services_is_passed_over(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{service}_PORT", "tcp://10.0.0.1:8080")
    for rest in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8080_TCP_PROTO", "PORT_53_UDP_ADDR"):
        monkeypatch.setenv(f"{service}_{rest}", "10.0.0.1")
    for settings, flags in COMMANDS:
        load(settings, flags)
    assert load(ServiceSettings, {"topic": "t"}).kafka == {}
    assert load(ServiceSettings, {"topic": "t"}).health_port is None


def test_every_setting_of_the_service_and_of_a_replay_says_what_it_affects() -> None:
    for cls in (ServiceSettings, ReplaySettings):
        assert {name for name, field in cls.model_fields.items() if not extra_of(field)["affects"]} == set()


@pytest.mark.parametrize("name", sorted(REMOVED.keys() - {"json", "format"}))
def test_a_setting_that_is_gone_is_refused_with_what_to_use(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {field.strip("_").replace("_", "-") for cls in SETTINGS.values() for field in cls.model_fields}
    assert name not in known
    file = tmp_path / "fomo.yaml"
    file.write_text(f"topic: t\n{name}: 1\n")
    with pytest.raises(ConfigError, match=f"unknown setting {name}: it is gone; "):
        load(ServiceSettings, {"config": file})
    with pytest.raises(ConfigError, match=f"no flag --{name}: it is gone; "):
        parse(ServiceSettings, ["--topic", "t", f"--{name}", "1"])
    monkeypatch.setenv(f"FOMO_{name.upper().replace('-', '_')}", "1")
    with pytest.raises(ConfigError, match=": it is gone; "):
        load(ServiceSettings, {"topic": "t"})


@pytest.mark.parametrize(("old", "value", "bad"), [("still", "ignore", "maybe"), ("kernel", "torch", "c")])
def test_an_earlier_name_of_a_setting_works_with_a_note(
    old: str, value: str, bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, file = RENAMED[old], tmp_path / "fomo.yaml"
    flag, variable = option(new), f"FOMO_{old.upper()}"
    file.write_text(f"{old}: {value}\n")
    in_file = ["--topic", "t", "--config", str(file)]
    with pytest.warns(FomoWarning, match=f"^--{old} is called {flag} now, and"):
        assert getattr(parse(ServiceSettings, ["--topic", "t", f"--{old}={value}"]), new) == value
    with pytest.warns(FomoWarning, match=f"^{old} in .* is called {flag[2:]} now"):
        assert getattr(parse(ServiceSettings, in_file), new) == value
    with pytest.warns(FomoWarning, match=flag):  # the present name wins where both are given
        settings = load(ServiceSettings, {"topic": "t", old: bad, new: value})
    assert command_line(settings, "run") == f"fomo-stream run {flag} {value} --topic t"
    load(NotifySettings, {"alerts": "a", "to": ("mailto://x",), "config": file})  # it is of another command
    monkeypatch.setenv(variable, bad)
    with pytest.warns(FomoWarning, match=variable), pytest.raises(ConfigError, match=f"^{variable} {bad}: "):
        parse(ServiceSettings, in_file)  # the environment wins over the file
    monkeypatch.setenv(f"FOMO_{new.upper()}", value)
    with pytest.warns(FomoWarning, match=variable):
        assert getattr(load(ScoreSettings, {}), new) == value
    monkeypatch.setenv(variable, "")
    monkeypatch.delenv(f"FOMO_{new.upper()}")
    assert getattr(load(ScoreSettings, {}), new) == ScoreSettings.model_fields[new].default


# A value of each setting of the service whose values are neither a choice, nor on or off.
WRITTEN = {
    **dict.fromkeys(("features", "categorical", "counters", "mute_key"), "a,b.c"),
    **dict.fromkeys(("only_rises", "only_falls"), "a,b.c"),
    **{
        "exclude": "z",
        "ignore": "a=2.5,b=5%",
        "valid": "a=0:100",
        "time_features": "hour",
        "timezone": "Europe/Berlin",
    },
    **{"views": "fast", "silence": "5x", "silence_min": "90s", "silence_of": "key,topic", "alert_rate": "0.02"},
    **{"missing_values": "a=-1,*=65535", "derive": "count(10m), sum(a, 24h)", "warm": "12h", "max_latency_ms": "30"},
    **{"schema_wait": "7.5", "seed_context": __file__, "reference": __file__},
}
APART = {"config", "calendar", "schema_file", "kafka", "registry", "bootstrap"}  # files and clients; other tests


def _written(name: str, field: Any) -> str:
    choices = choices_of(field.annotation).strip("{}").split(",")
    if choices != [""]:
        return next(one for one in choices if one != field.default)
    if field.annotation is bool:
        return "true"
    return WRITTEN.get(name, "20" if "int" in str(field.annotation) else name)


def test_flag_variable_and_file_give_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted({*ServiceSettings.model_fields} - APART - {"rules", "maintenance"})
    values = {name: _written(name, ServiceSettings.model_fields[name]) for name in names}
    common, flags, lines = ["--registry", "mock://m"], list[str](), list[str]()
    for name, value in values.items():
        is_switch = ServiceSettings.model_fields[name].annotation is bool
        flags += [option(name)] if is_switch else [option(name), value]
        lines.append(f"{option(name)[2:]}: {value}\n")
        monkeypatch.setenv(f"FOMO_{name.strip('_').upper()}", value)
    by_variable = parse(ServiceSettings, common)
    for name in names:
        monkeypatch.delenv(f"FOMO_{name.strip('_').upper()}")
    by_flag = parse(ServiceSettings, [*common, *flags])
    (tmp_path / "fomo.yaml").write_text("".join(lines))
    by_file = parse(ServiceSettings, [*common, "--config", str(tmp_path / "fomo.yaml")])
    assert [name for name in names if getattr(by_flag, name) == ServiceSettings.model_fields[name].default] == []
    assert by_flag.model_dump() == by_variable.model_dump() == {**by_file.model_dump(), "config": None}


def test_values_in_yaml_are_taken_as_they_are_written(tmp_path: Path) -> None:
    """YAML 1.1 would read an octal number, seconds in base 60, a date, and the Boolean of Norway."""
    file = tmp_path / "fomo.yaml"
    file.write_text("\ufefffrom: 2026-10-01\nmin-context: 0200\nkey: no\nfeatures: [on, 5, 1.10]\n")
    settings = load(ReplaySettings, {"config": file, "topic": "t"})
    assert (settings.from_, settings.min_context, settings.key) == ("2026-10-01", 200, "no")
    assert settings.features == ("on", "5", "1.10")
    file.write_text("topic: t\nkafka: {sasl.password: 0123, socket.keepalive.enable: true}\nscores-only: yes\n")
    service = load(ServiceSettings, {"config": file})
    assert service.kafka == {"sasl.password": "0123", "socket.keepalive.enable": "true"}
    assert service.scores_only
    file.write_text("topics:\n  a: &a {lags: 1, key: k}\n  b: {<<: *a, lags: 2}\n")  # a merged table may replace names
    assert [load(ServiceSettings, {"config": file, "topic": topic}).lags for topic in "ab"] == [1, 2]


def test_a_name_that_is_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    """One of the two values would be lost."""
    file = tmp_path / "fomo.yaml"
    for content, line in (("kafka:\n  a.b: 1\n  a.b: 2\n", 3), ("batch-size: 1\nbatch_size: 2\n", 1)):
        file.write_text(content)
        with pytest.raises(ConfigError, match=rf"line {line}\b.*is there twice|is there twice in line {line}\b"):
            load(ScoreSettings, {"config": file})


def test_an_encoding_of_windows_is_read_or_named(tmp_path: Path) -> None:
    file = tmp_path / "fomo.toml"
    file.write_text("\ufefflags = 2\n")
    assert load(ScoreSettings, {"config": file}).lags == 2
    file.write_bytes("# größe\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="byte 5 is not UTF-8; save the file in UTF-8"):
        load(ScoreSettings, {"config": file})


def test_a_reference_is_a_range_of_time_or_a_file_which_may_be_named_like_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reference(text: str) -> Any:
        settings = load(ServiceSettings, {"topic": "t", "reference": text})
        span = settings.reference_span
        return settings.reference if span is None else [time % 86_400_000 // 60_000 for time in (span.start, span.stop)]

    monkeypatch.chdir(tmp_path)
    assert reference("2026-10-01T06:00+02:00/2026-10-01 07:30") == [4 * 60, 7 * 60 + 30]
    (tmp_path / "2026-10-01").mkdir()
    (tmp_path / "2026-10-01" / "2026-10-06").write_text("x\n1\n")
    assert reference("first:90.5h") == [0, 18 * 60 + 30]
    (tmp_path / "first:5d").write_text("x\n1\n")
    assert reference("first:5d") == Path("first:5d")
    assert reference("2026-10-01/2026-10-06") == Path("2026-10-01/2026-10-06")
    assert reference("2026-10-01/2026-10-07") == [0, 0]
    (tmp_path / "2026-10-01" / "2026-10-08").mkdir()
    for text, message in (
        ("2026-10-01/2026-10-08", "it is a folder; name a file"),
        ("2026-10-06/2026-10-01", "2026-10-01 is not after 2026-10-06; the end is the first moment after the range"),
        ("2026-10-01/week.csv", "no such file: 2026-10-01/week.csv; or give a range of time, as 2026-10-01/2026-10-06"),
        ("812/900", "no such file: 812/900; or give a range of time, as 2026-10-01/2026-10-06 or first:5d"),
        ("first:5", "--reference first:5: write a number and a unit"),
        *((f"first:{length}", "those of at least 1s and at most 3650d") for length in ("0d", "3651d", "9" * 400 + "w")),
    ):
        with pytest.raises(ConfigError, match=message):
            reference(text)
