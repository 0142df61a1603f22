"""The page on which an owner sets a machine's limits."""

from collections.abc import Iterator
from datetime import time
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from msgspec.structs import replace

from accounts import machine_control, selectors
from accounts.models import Machine
from peer_agent.machine.resting import WORDS_OF_BLIND
from peer_agent.protocol.messages.machine import DAY_MINUTES, LEAST_DUTY, MOST_PROGRAMS, Hours, OwnerLimits
from web.http.requester import person_in

DAYS = (
    gettext_lazy("Monday"),
    gettext_lazy("Tuesday"),
    gettext_lazy("Wednesday"),
    gettext_lazy("Thursday"),
    gettext_lazy("Friday"),
    gettext_lazy("Saturday"),
    gettext_lazy("Sunday"),
)
MOST_GB, MOST_MBPS, LEAST_MBPS = 100_000, 100_000, 0.1
MOST_IDLE = 24 * 60
# The fields of each group, and their units
POWER = {"threads": "", "duty_percent": "%", "memory_gb": "GB", "disk_gb": "GB"}
NETWORK = {"up_mbps": "Mb/s", "down_mbps": "Mb/s", "month_gb": "GB"}
EVERY_DAY = ("from_all", "to_all")
LAST_MINUTE = time(23, 59)  # time fields do not accept 24:00, so this stands for the end of the day
NO_LIMIT = gettext_lazy("no limit")


def _number(label: Any, help_text: Any = "", *, most: float, least: float = 1, empty: Any = NO_LIMIT) -> forms.Field:
    """Return an optional number field. It accepts fractions if `least` is a float, and shows `empty` if unset."""
    kind = forms.FloatField if isinstance(least, float) else forms.IntegerField
    widget = forms.NumberInput(attrs={"placeholder": empty})
    return kind(label=label, help_text=help_text, min_value=least, max_value=most, required=False, widget=widget)


def _time_field(label: str) -> forms.TimeField:
    widget = forms.TimeInput(attrs={"type": "time"}, format="%H:%M")
    return forms.TimeField(label=label, required=False, widget=widget)


class LimitsForm(forms.Form):
    """A machine's limits. An empty field sets no limit beyond those that the agent was started with."""

    threads = _number(
        gettext_lazy("CPU threads"), gettext_lazy("Without a limit, the agent's own setting applies."), most=1024
    )
    duty_percent = _number(
        gettext_lazy("Time spent training"),
        gettext_lazy("Regular pauses keep the machine cool."),
        least=LEAST_DUTY,
        most=100,
    )
    memory_gb = _number(
        gettext_lazy("Memory"), gettext_lazy("The agent leaves the run if it needs more."), least=0.1, most=MOST_GB
    )
    disk_gb = _number(gettext_lazy("Disk"), gettext_lazy("Cache for training data."), most=MOST_GB)
    up_mbps = _number(gettext_lazy("Upload"), least=LEAST_MBPS, most=MOST_MBPS)
    down_mbps = _number(gettext_lazy("Download"), least=LEAST_MBPS, most=MOST_MBPS)
    month_gb = _number(
        gettext_lazy("Traffic per month"),
        gettext_lazy("Upload plus download. At the limit, it pauses until next month."),
        most=MOST_GB,
    )
    idle_minutes = _number(
        gettext_lazy("Only when idle for"),
        gettext_lazy("Leave empty to train while it is in use."),
        most=MOST_IDLE,
        empty="0",
    )
    pause_on_battery = forms.BooleanField(label=gettext_lazy("Pause on battery"), required=False)
    programs = forms.CharField(
        label=gettext_lazy("Pause while these programs run"),
        help_text=format_lazy(
            gettext_lazy("One program name per line, as in your task manager (for example steam). Up to {number}."),
            number=MOST_PROGRAMS,
        ),
        max_length=100 * MOST_PROGRAMS,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "autocapitalize": "none"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields |= {"from_all": _time_field(_("Every day from")), "to_all": _time_field(_("Every day to"))}
        for day, name in enumerate(DAYS):
            self.fields[f"from_{day}"] = _time_field(_("%(day)s from") % {"day": name})
            self.fields[f"to_{day}"] = _time_field(_("%(day)s to") % {"day": name})

    def every_day(self) -> Iterator[forms.BoundField]:
        return (self[name] for name in EVERY_DAY)

    def differs(self) -> bool:
        """Return True if hours were entered for a particular day of the week, even invalid ones."""
        return any(end.value() or end.errors for _name, *ends in self.days() for end in ends)

    def days(self) -> Iterator[tuple[str, forms.BoundField, forms.BoundField]]:
        for day, name in enumerate(DAYS):
            yield str(name), self[f"from_{day}"], self[f"to_{day}"]

    def power(self) -> list[tuple[forms.BoundField, str]]:
        return self._fields_of(POWER)

    def network(self) -> list[tuple[forms.BoundField, str]]:
        return self._fields_of(NETWORK)

    def _fields_of(self, units: dict[str, str]) -> list[tuple[forms.BoundField, str]]:
        return [(self[name], unit) for name, unit in units.items()]

    def clean_programs(self) -> tuple[str, ...]:
        lines = [line.strip() for line in self.cleaned_data["programs"].splitlines()]
        names = tuple(dict.fromkeys(line for line in lines if line))
        if len(names) > MOST_PROGRAMS or any(len(name) > 80 for name in names):
            raise forms.ValidationError(
                _("At most %(number)s names of up to 80 characters each.") % {"number": MOST_PROGRAMS}
            )
        return names

    def clean(self) -> dict[str, Any]:
        """Require each day's hours to have both a start and an end."""
        cleaned: dict[str, Any] = super().clean() or {}
        for day, name in enumerate(DAYS):
            if (cleaned.get(f"from_{day}") is None) != (cleaned.get(f"to_{day}") is None):
                self.add_error(f"from_{day}", _("%(day)s needs both a start and an end.") % {"day": name})
        if (cleaned.get("from_all") is None) != (cleaned.get("to_all") is None):
            self.add_error("from_all", _("Hours need both a start and an end."))
        return cleaned

    def _hours(self) -> Iterator[Hours]:
        given = self.cleaned_data
        for day in range(len(DAYS)):
            first, stop = given.get(f"from_{day}"), given.get(f"to_{day}")
            if first is None and stop is None:
                first, stop = given.get("from_all"), given.get("to_all")
            if first is not None and stop is not None:
                end = DAY_MINUTES if stop >= LAST_MINUTE else 60 * stop.hour + stop.minute
                yield Hours(day, 60 * first.hour + first.minute, end or DAY_MINUTES)

    def limits(self) -> OwnerLimits:
        """Return the limits entered in a valid form, as the struct that the site sends to the machine."""
        given = self.cleaned_data
        return OwnerLimits(
            threads=given["threads"] or 0,
            duty_percent=given["duty_percent"] or 100,
            memory_mb=round(1000 * (given["memory_gb"] or 0)),
            disk_gb=given["disk_gb"] or 0,
            up_kbps=round(1000 * (given["up_mbps"] or 0)),
            down_kbps=round(1000 * (given["down_mbps"] or 0)),
            month_gb=given["month_gb"] or 0,
            hours=tuple(self._hours()),
            idle_minutes=given["idle_minutes"] or 0,
            pause_on_battery=given["pause_on_battery"],
            programs=given["programs"],
        )


def filled_in(limits: OwnerLimits) -> dict[str, Any]:
    """Return the form's initial values for the limits that are set now."""
    shown: dict[str, Any] = {
        "threads": limits.threads or None,
        "duty_percent": limits.duty_percent if limits.duty_percent < 100 else None,
        "memory_gb": limits.memory_mb / 1000 or None,
        "disk_gb": limits.disk_gb or None,
        "up_mbps": limits.up_kbps / 1000 or None,
        "down_mbps": limits.down_kbps / 1000 or None,
        "month_gb": limits.month_gb or None,
        "idle_minutes": limits.idle_minutes or None,
        "pause_on_battery": limits.pause_on_battery,
        "programs": "\n".join(limits.programs),
    }
    spans = {(hours.first, hours.stop) for hours in limits.hours}
    if len(spans) == 1 and len({hours.day for hours in limits.hours}) == len(DAYS):
        ((first, stop),) = spans
        return shown | {"from_all": _time(first), "to_all": _time(stop)}
    for hours in limits.hours:
        shown |= {f"from_{hours.day}": _time(hours.first), f"to_{hours.day}": _time(hours.stop)}
    return shown


def _time(minute: int) -> time:
    return LAST_MINUTE if minute == DAY_MINUTES else time(minute // 60, minute % 60)


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def machine_limits(request: HttpRequest, machine_id: UUID) -> HttpResponse:
    machine = selectors.machine_of(person_in(request), machine_id)
    if machine is None or machine.kind != Machine.Kind.AGENT or machine.revoked_at is not None:
        raise Http404
    control = machine_control.control_of(machine)
    form = LimitsForm(request.POST if request.method == "POST" else None, initial=filled_in(control.wanted.limits))
    if request.method == "POST" and form.is_valid():
        limits = form.limits()
        machine_control.change(machine=machine, to=lambda wanted: replace(wanted, limits=limits))
        return redirect("web:machines")
    blind = [WORDS_OF_BLIND[what] for what in control.report.blind] if control.report is not None else []
    facts = {"machine": machine, "form": form, "blind": blind}
    return render(request, "web/accounts/machine_limits.html", facts, status=400 if form.is_bound else 200)
