import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("accounts", "0002_look"), ("runs", "0007_auditmark"))
    operations = (
        migrations.RemoveConstraint("ledgerentry", "ledger_machine_once_an_entry"),
        migrations.AddField(
            "ledgerentry",
            "reverses",
            models.OneToOneField(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="reversal", to="runs.ledgerentry"
            ),
        ),
        migrations.AddField(
            "ledgerentry", "reason", models.CharField(blank=True, db_default="", max_length=200)
        ),
        migrations.AddConstraint(
            "ledgerentry",
            models.UniqueConstraint(
                condition=models.Q(("reverses", None)),
                fields=("entry", "machine"),
                name="ledger_machine_once_an_entry",
            ),
        ),
        migrations.CreateModel(
            "Check",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("passed", models.BigIntegerField(default=0)),
                ("index", models.BigIntegerField(default=0)),
                ("at", models.DateTimeField(auto_now=True)),
                (
                    "machine",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="checks", to="accounts.machine"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="checks", to="runs.run"
                    ),
                ),
            ],
            options={
                "constraints": (
                    models.UniqueConstraint(fields=("run", "machine"), name="check_machine_once_a_run"),
                ),
            },
        ),
    )
