from typing import Any

from django.db import migrations, models
from django.db.models import Sum


def add_up(apps: Any, _: Any) -> None:
    total, ledger, check = (apps.get_model("runs", name) for name in ("MachineTotal", "LedgerEntry", "Check"))
    for each in check.objects.filter(index__gt=0).iterator():
        own = ledger.objects.filter(run=each.run, machine=each.machine, reverses=None, reversal=None)
        of_log = own.filter(entry__index__gt=0, entry__index__lte=each.index)
        samples = of_log.aggregate(given=Sum("samples", default=0))["given"]
        total.objects.filter(run=each.run, machine=each.machine).update(checked=samples)


class Migration(migrations.Migration):
    dependencies = (("runs", "0008_reversals"),)
    operations = (
        migrations.AddField("machinetotal", "checked", models.BigIntegerField(db_default=0, default=0)),
        migrations.RunPython(add_up, migrations.RunPython.noop, elidable=True),
    )
