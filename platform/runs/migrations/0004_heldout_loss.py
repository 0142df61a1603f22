from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0003_publication'),
    ]

    operations = [
        migrations.AddField(
            model_name='snapshot',
            name='heldout_loss',
            field=models.FloatField(blank=True, null=True),
        ),
    ]
