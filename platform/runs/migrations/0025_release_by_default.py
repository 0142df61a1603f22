from typing import Any

from django.db import migrations, models


def keep(apps: Any, _: Any) -> None:
    """What was released so far stays as it is."""
    apps.get_model("runs", "Release").objects.update(is_chosen=True)


class Migration(migrations.Migration):
    dependencies = (("runs", "0024_roles_and_trail"),)

    operations = (
        migrations.AddField(
            model_name="release",
            name="is_chosen",
            field=models.BooleanField(default=False),
        ),
        migrations.RunPython(keep, migrations.RunPython.noop),
    )
