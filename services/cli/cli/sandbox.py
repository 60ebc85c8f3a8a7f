"""`dualtrack sandbox …`: what isolates agents' code on this machine, and the templates that sandboxes are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import backend
from cli.outcome import Exit
from cli.session import Session, command

if TYPE_CHECKING:
    from dualtrack.sandbox.rung import RungReport
    from dualtrack.sandbox.sandboxes import Sandboxes
    from dualtrack.sandbox.template_builds import TemplateState


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Sandboxes of this machine (of the settings that an executor would have here).")
    command(group, "doctor")(doctor)
    templates = typer.Typer(no_args_is_help=True, help="What sandboxes are made of: built once, shown read-only to all of them.")
    command(templates, "list")(list_templates)
    command(templates, "build")(build_templates)
    command(templates, "prune")(prune_templates)
    group.add_typer(templates, name="templates")
    app.add_typer(group, name="sandbox")


def doctor(session: Session) -> int:
    """Try every rung of the ladder, and every template that is built, by a real run.

    Exit status 1 where the configured rung does not work here, or a template does not. Rungs from the weakest to the strongest boundary.
    Starts and removes sandboxes of its own, and changes nothing else; an executor may be at work meanwhile.
    """
    with backend.failures():
        from dualtrack.sandbox.factory import configured, examine

        settings = backend.settings(session)
        chosen = configured(settings.sandbox)
        reports = []
        for report in examine(settings.sandbox, settings.limits.sandbox):
            reports.append(report)
            if not session.as_json:
                for line in _lines(report, configured=report.rung is chosen):
                    session.out.text(line)
    works = any(report.works for report in reports if report.rung is chosen)
    templates = list(_examined(session)) if works else []
    ok = works and not any(state.problem for state in templates)
    if session.as_json:
        rungs = [_as_json(report) for report in reports]
        states = [{"name": state.name, "built": state.built, "problem": state.problem or None} for state in templates]
        session.out.document({"object": "sandbox_report", "configured": chosen.value, "ok": ok, "rungs": rungs, "templates": states})
    else:
        session.out.text(f"Configured: {chosen.value}, which {'works' if works else 'does NOT work'} here (DUALTRACK_SANDBOX__DRIVER).")
        for state in templates:
            session.out.text(f"  template {state.name:<20} {state.problem or ('works' if state.built else 'not built')}")
    return Exit.OK if ok else Exit.JOB_FAILED


def _examined(session: Session) -> Iterator[TemplateState]:
    """All templates on the configured rung."""
    with _sandboxes(session) as sandboxes:
        builder = sandboxes.builder()
        for name in sandboxes.templates.definitions:
            yield builder.state(name)


def _lines(report: RungReport, *, configured: bool) -> Iterator[str]:
    """A line, then what was found, what is missing, what to do."""
    mark = "*" if configured else " "
    yield f"{mark} {report.rung.value:<11} {'works' if report.works else 'no':<6} {report.strength}"
    for name, found in report.found.items():
        yield f"      {name}: {found}"
    for gap in report.gaps:
        yield f"      gap: {gap}"
    if report.problem:
        yield f"      {report.problem}"


def _as_json(report: RungReport) -> Mapping[str, Any]:
    return {
        "rung": report.rung.value,
        "works": report.works,
        "strength": report.strength,
        "found": dict(report.found),
        "gaps": list(report.gaps),
        "problem": report.problem or None,
    }


def list_templates(session: Session) -> None:
    """Templates by name, and whether they are built for the sandbox's Python."""
    with _sandboxes(session) as sandboxes:
        found = []
        for definition in sandboxes.templates.definitions.values():
            directory = sandboxes.templates.directory(definition) if definition.built else None
            state = "nothing to build" if directory is None else "built" if directory.is_dir() else "not built"
            found.append({"name": definition.name, "state": state, "directory": str(directory) if directory else None})
    if session.as_json:
        session.out.document({"object": "list", "data": found})
        return
    for item in found:
        session.out.text(f"{item['name']:<20} {item['state']:<17} {item['directory'] or ''}".rstrip())


def build_templates(
    session: Session, names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; else all.")] = None
) -> None:
    """Build templates that are not built yet: packages are fetched, then compiled in a sandbox, which then imports what is preloaded.

    Safe from several places at once.
    """
    with _sandboxes(session) as sandboxes:
        builder = sandboxes.builder()
        built = {}
        for name in names or list(sandboxes.templates.definitions):
            directory = builder.build(name, session.out.say)
            built[name] = str(directory) if directory else None
    if session.as_json:
        session.out.document({"object": "list", "data": [{"name": name, "directory": where} for name, where in built.items()]})
        return
    for name, where in built.items():
        session.out.text(f"{name:<20} {where or 'nothing to build'}")


def prune_templates(session: Session) -> None:
    """Remove what was built from settings that are no longer these, once nobody has used it for a week."""
    with _sandboxes(session) as sandboxes:
        removed = sandboxes.builder().prune()
    if session.as_json:
        session.out.document({"object": "list", "data": removed})
        return
    session.out.text(f"{len(removed)} removed.")


@contextmanager
def _sandboxes(session: Session) -> Iterator[Sandboxes]:
    """Sandboxes of the configured rung, none of them warm."""
    with backend.failures():
        from dualtrack.domain.templates import SHELL_TEMPLATE
        from dualtrack.sandbox.factory import open_sandboxes

        settings = backend.settings(session)
        plain = settings.sandbox.model_copy(update={"pool_max": 0, "pool_templates": [SHELL_TEMPLATE]})
        with open_sandboxes(plain, settings.limits.sandbox) as sandboxes:
            yield sandboxes
