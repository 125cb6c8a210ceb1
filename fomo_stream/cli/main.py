"""The command line: `fomo-stream [run]`, `demo`, `score`, `replay`, `compare`, `notify`, `redrive`, `group`, `doctor`.

Each command imports its large packages only after parsing its flags, so `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from fomo_stream.cli.parser import parse, parse_flags
from fomo_stream.cli.processes import fork_members
from fomo_stream.cli.signals import Signals
from fomo_stream.errors import BrokerError, ConfigError, FomoError, FomoWarning, NotPermittedError, TopicError
from fomo_stream.logs import configure_logging, kv, quiet_clients
from fomo_stream.settings.commands import DemoSettings, DoctorSettings, GroupSettings, RedriveSettings, ScoreSettings
from fomo_stream.settings.notify import NotifySettings
from fomo_stream.settings.replay import CompareSettings, ReplaySettings
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import AnySettings
from fomo_stream.settings.topic_selection import ProcessSettings, TopicCatalog, TopicSettings
from fomo_stream.threads import limit_threads
from fomo_stream.wording import clean_lines, did_you_mean

log = logging.getLogger(__name__)

UNASKED = (BrokerError.exit_code, TopicError.exit_code, NotPermittedError.exit_code)
SWITCH_S = 0.001  # longest wait of a record for the thread that builds contexts; Python's default is 5 ms


def program() -> NoReturn:
    """Run `main` and end the process.

    Where a broker does not answer, threads may still be in a call of the Kafka client and use its objects. The process
    could crash if the interpreter destroyed these objects at exit, so it exits without cleaning up.
    """
    try:
        code = main()
    except Exception:  # a defect of this program
        traceback.print_exc()
        code = 1
    if "confluent_kafka" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None and not stream.closed:
                    stream.flush()
            except OSError:  # the reader of a pipe has ended, or a disk is full
                code = code or 1
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        name, rest = _split_command(arguments)
        return COMMANDS[name](rest)
    except FomoError as error:
        print(f"fomo-stream: {clean_lines(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # such as `fomo-stream group | head`
        sys.stderr.close()
        return 141


# The docstring of a command is the text at the top of its --help.


def run_command(argv: Sequence[str]) -> int:
    """Find outliers in a Kafka topic: score every record, without labels, training or tuning.

      fomo-stream --topic sensors --out anomalies     score a topic (the command name `run` may be left out)
      fomo-stream --topic '^plant-.*' --group 'fomo-{topic}'    score all topics that match, in one process
      fomo-stream demo                                watch it work: embedded broker, simulated sensors
      fomo-stream score data.csv                      score a file or a pipe, without Kafka
      fomo-stream replay --topic sensors --last 7d    see how well it would have done on past records
      fomo-stream compare before.json after.json      say what changed between two replays
      fomo-stream notify --alerts TOPIC --to URL      tell people of incidents: Slack, mail, Alertmanager, webhooks
      fomo-stream redrive --dead-letters TOPIC        send dead letters back, after a fix
      fomo-stream doctor --topic sensors              check brokers, topics, permissions and settings
      fomo-stream group --topic sensors               show what the group has agreed on

    Records are JSON objects; their numbers and booleans are the features. Each record is written to the output
    topic with its key, headers and timestamp, and with its result in the field `fomo`. Each is scored exactly
    once, even if processes are killed. Ctrl-C or SIGTERM stops the service cleanly.
    """
    with _logged_notes():
        flags = parse_flags(ServiceSettings, argv, inspect.getdoc(run_command) or "")
        catalog = TopicCatalog(ServiceSettings, flags)
        catalog.check()
        process = catalog.process
        configure_logging(process.log_level)
    if process.processes > 1:
        TopicCatalog(ServiceSettings, flags, 0).check()  # else each process would report the same mistake
        number, code = fork_members(process)
        if number < 0:
            return code
        port = {} if process.health_port is None else {"health_port": process.health_port + number}
        catalog = TopicCatalog(ServiceSettings, flags | port, number)
        process = catalog.process
    signals = Signals()
    limit_threads(process.threads)
    if catalog.selection.is_single:  # many threads would lose more time by switching than a record by waiting
        sys.setswitchinterval(SWITCH_S)
    from fomo_stream.kafka.service import Service  # torch and confluent_kafka
    from fomo_stream.kafka.topic_services import TopicServices
    from fomo_stream.ops.monitor import Monitors

    monitors = Monitors(process)
    service: Service | TopicServices
    if catalog.selection.is_single:
        settings = catalog.settings(*catalog.selection.names)
        service = Service(settings, observer=monitors.of_topic(settings))
    else:
        service = TopicServices(catalog, monitors.of_topic)
    signals.attach(service)
    with monitors.serve(service):
        service.run()
    return 0


def demo_command(argv: Sequence[str]) -> int:
    """Watch fomo-stream score a simulated sensor stream with injected faults, live.

    It starts an embedded broker in memory, sends sensor records to it in real time, and runs the same service
    on them. The embedded broker has no transactions, so delivery is at least once. Ctrl-C ends it.
    """
    settings = _load_settings(DemoSettings, argv, demo_command)
    limit_threads(settings.threads)
    from fomo_stream.demo.demo import run_demo

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    return run_demo(settings)


def score_command(argv: Sequence[str]) -> int:
    """Score CSV, JSON lines or Avro, from a file or a pipe, without Kafka.

      fomo-stream score data.csv -o scored.csv
      fomo-stream score data.csv --outliers-only             only the outliers, with the features that make them odd
      cat data.jsonl | fomo-stream score - | head

    Each row is scored against the rows before it, then learned. With --context FILE, each row is scored against
    the rows of that file only. Lines that are not records stay in their place, with a status.
    """
    settings = _load_settings(ScoreSettings, argv, score_command)
    limit_threads(settings.threads)
    from fomo_stream.cli.score import run_score

    return run_score(settings)


def replay_command(argv: Sequence[str]) -> int:
    """Replay past records, and see how well fomo-stream would have done: an HTML report, and a summary here.

      fomo-stream replay --topic sensors --last 7d
      fomo-stream replay --topic sensors --group fomo-stream --from 2026-10-01 --to 2026-11-01 --label is_anomaly
      fomo-stream replay --file rows.csv --label is_anomaly --compare knn,river.HalfSpaceTrees

    Records go through the same detector as in the service, in their order. The offsets and the state of a group are
    never touched. With --group, the settings and features are those that the group has agreed on. The
    environment and the --config file of an instance can be used as they are. Ctrl-C ends it with a report.
    """
    settings = _load_settings(ReplaySettings, argv, replay_command)
    limit_threads(1)  # until the replay begins, with the threads that the group has agreed on
    from fomo_stream.replaying.command import run_replay

    return run_replay(settings)


def compare_command(argv: Sequence[str]) -> int:
    """Compare two replays: what changed, and whether by more than chance.

    fomo-stream compare before.json after.json      files that `fomo-stream replay --json FILE` has written
    """
    settings = _load_settings(CompareSettings, argv, compare_command)
    from fomo_stream.replaying.comparison import compare_files

    print(compare_files(settings.before, settings.after))
    return 0


def notify_command(argv: Sequence[str]) -> int:
    """Tell people of incidents: by chat, mail, Alertmanager or a webhook.

      fomo-stream notify --alerts alerts --to slack://TOKEN/CHANNEL
      fomo-stream notify --alerts alerts --webhook https://pager.example.com/hook
      fomo-stream notify --alerts alerts --dry-run              print the messages about what the topic holds

    It reads the topic that `fomo-stream run --alerts TOPIC` writes. One message comes when an incident opens, and one
    when it ends. Each arrives at least once: while a target is down, its messages wait, and no other's. Ctrl-C or
    SIGTERM stops it cleanly.
    """
    settings = _load_settings(NotifySettings, argv, notify_command)
    signals = Signals()
    from fomo_stream.notify.notifier import Notifier, print_messages  # confluent_kafka

    if settings.dry_run:
        print_messages(settings, sys.stdout)
        return 0
    service = Notifier(settings)
    signals.attach(service)
    service.run()
    return 0


def redrive_command(argv: Sequence[str]) -> int:
    """Send dead letters back to the topics that they came from, after a fix.

      fomo-stream redrive --dead-letters sensors-dead-letters --dry-run     count them by reason
      fomo-stream redrive --dead-letters sensors-dead-letters               send all

    Each goes back with its key, value, headers, timestamp and partition. Each is sent only once, even if the
    command runs again or with other reasons, and stays in the topic of dead letters. A record that was cut to
    fit that topic cannot be sent back.
    """
    settings = _load_settings(RedriveSettings, argv, redrive_command)
    from fomo_stream.admin.redrive import send_dead_letters

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: an open transaction is aborted
    summary = send_dead_letters(settings)
    print(clean_lines(str(summary)))
    summary.check()
    return 0


def group_command(argv: Sequence[str]) -> int:
    """Show and change what a group has agreed on: its features and settings.

      fomo-stream group --topic sensors                                look; nothing is changed
      fomo-stream group --topic sensors --alerts pages --update-group  change what may change
      fomo-stream group --config fomo.toml --check                     would an instance be refused?

    Give it the environment and --config file of an instance, as they are. It shows which settings differ here.
    With --update-group it changes those that are given and may change, while the group has no members; the others
    stay as they are.
    """

    def answer(settings: GroupSettings, heading: str) -> tuple[str, int]:
        from fomo_stream.admin.group import check_group, look_at_group, update_group

        action = check_group if settings.check else update_group if settings.update_group else look_at_group
        return heading + action(settings), 0

    return _for_each_topic(GroupSettings, argv, group_command, answer)


def doctor_command(argv: Sequence[str]) -> int:
    """Check a deployment and say what to do: brokers, replicas, permissions, topics, transactions, settings.

      fomo-stream doctor --topic sensors --config fomo.toml

    It takes all flags of the service, so give it the environment and --config file of an instance. It changes
    nothing and reads no values of records. The exit code is that of the first problem; warnings do not count.
    """

    def answer(settings: DoctorSettings, heading: str) -> tuple[str, int]:
        from fomo_stream.admin.doctor import run_checks

        return run_checks(settings, heading)

    return _for_each_topic(DoctorSettings, argv, doctor_command, answer)


Command = Callable[[Sequence[str]], int]
_FUNCTIONS = (
    *(run_command, demo_command, score_command, replay_command, compare_command),
    *(notify_command, redrive_command, group_command, doctor_command),
)
COMMANDS: dict[str, Command] = {function.__name__.removesuffix("_command"): function for function in _FUNCTIONS}


def _load_settings(cls: type[AnySettings], argv: Sequence[str], command: Command) -> AnySettings:
    """Return the settings of a command, and configure the logs with them."""
    with _logged_notes():
        settings = parse(cls, argv, inspect.getdoc(command) or "", command.__name__.removesuffix("_command"))
        configure_logging(settings.log_level)
    return settings


def _for_each_topic(
    cls: type[TopicSettings],
    argv: Sequence[str],
    command: Command,
    answer: Callable[[TopicSettings, str], tuple[str, int]],
) -> int:
    """Print the answer of a command for each topic that is selected; return the exit code of the first problem.

    answer: returns a text that begins with the given heading, and an exit code. A topic that could not be asked (7, 8
    or 9) counts only if no other has a problem: before an upgrade, it must not hide a topic that refuses.
    """
    with _logged_notes():
        name = command.__name__.removesuffix("_command")
        catalog = TopicCatalog(cls, parse_flags(cls, argv, inspect.getdoc(command) or "", name))
        catalog.check()
        settings, errors = catalog.topics(_listed_topics(catalog.process) if catalog.selection.patterns else [])
        configure_logging(next((own.log_level for own in settings.values()), "warning"))
    if not settings and not errors:
        what = f"no topic at {catalog.process.bootstrap} matches --topic {catalog.process.topic}"
        raise TopicError(what, "a pattern selects no topic that a group writes: give its name")
    codes = []
    for topic in (*settings, *errors):
        heading = "" if catalog.selection.is_single else f"topic {topic}\n"
        try:
            if topic in errors:
                raise errors[topic]
            with quiet_clients():
                text, code = answer(settings[topic], heading)
            print(clean_lines(text), flush=True)
        except FomoError as error:
            if not heading:
                raise
            where = "" if topic in errors else f"topic {topic}: "
            print(f"fomo-stream: {where}{clean_lines(str(error))}", file=sys.stderr, flush=True)
            code = error.exit_code
        codes.append(code)
    return min(filter(None, codes), key=lambda code: code in UNASKED, default=0)


def _listed_topics(process: ProcessSettings) -> list[str]:
    from fomo_stream.kafka.broker.clients import connect
    from fomo_stream.kafka.group.written_topics import WrittenTopics

    return WrittenTopics(process).without(connect(process)[1].topics)


@contextmanager
def _logged_notes() -> Iterator[None]:
    """Log warnings about renamed settings, each once, when the log is set up."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", FomoWarning)
        yield
    warnings.simplefilter("ignore", FomoWarning)  # settings can be loaded again
    for note in dict.fromkeys(str(note.message) for note in notes):
        log.warning(kv("setting_renamed", note=note))


def _split_command(arguments: list[str]) -> tuple[str, list[str]]:
    if not arguments or arguments[0].startswith("-"):
        return "run", arguments
    if arguments[0] not in COMMANDS:
        name = arguments[0]
        hint = did_you_mean(name, COMMANDS) or f"; commands are {', '.join(COMMANDS)}"
        if "." in name or os.path.isfile(name):
            hint = f"; to score a file: fomo-stream score {name}"
        raise ConfigError(f"there is no command {name}{hint}")
    return arguments[0], arguments[1:]
