"""Records move to a table of their own, a batch in each transaction; nothing of them comes into this process.

What was moved is emptied at once: SQLite fills the freed pages with the next batch, PostgreSQL's autovacuum gives them
back. Interrupted, it goes on behind the last batch.
"""

from typing import Any

from django.db import migrations, transaction
from django.db.models import Max

BATCH = 200  # records of some 54 kB

MOVE = """
    INSERT INTO runs_sealedrecord (entry_id, payload, signature, contributions)
    SELECT id, record, signature, %s FROM runs_logentry WHERE id > %s AND id <= %s
"""
EMPTY = "UPDATE runs_logentry SET record = %s, signature = %s WHERE id > %s AND id <= %s"


def move(apps: Any, schema_editor: Any) -> None:
    connection = schema_editor.connection
    entries = apps.get_model("runs", "LogEntry").objects.using(connection.alias).order_by("pk")
    moved = apps.get_model("runs", "SealedRecord").objects.using(connection.alias).aggregate(last=Max("entry"))["last"]
    done = moved or 0
    while batch := list(entries.filter(pk__gt=done).values_list("pk", flat=True)[:BATCH]):
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(MOVE, [b"", done, batch[-1]])
            cursor.execute(EMPTY, [b"", b"", done, batch[-1]])
        done = batch[-1]


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("runs", "0007_fill_coverage_and_totals")]

    operations = [migrations.RunPython(move)]
