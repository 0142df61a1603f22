from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (
        ('notices', '0001_initial'),
    )

    operations = (
        migrations.AlterField(
            model_name='choice',
            name='event',
            field=models.CharField(choices=[('needed', 'A run you are in needs volunteers'), ('finished', 'A run you are in is finished'), ('stopped', 'A machine of yours stopped'), ('request', 'Somebody asks to join a run you manage'), ('accepted', 'Your request to join a run is accepted'), ('declined', 'Your request to join a run is declined'), ('test', 'A test'), ('confirm', 'Whether an address is theirs'), ('off', 'Their webhook was switched off')], max_length=8),
        ),
        migrations.AlterField(
            model_name='notice',
            name='event',
            field=models.CharField(choices=[('needed', 'A run you are in needs volunteers'), ('finished', 'A run you are in is finished'), ('stopped', 'A machine of yours stopped'), ('request', 'Somebody asks to join a run you manage'), ('accepted', 'Your request to join a run is accepted'), ('declined', 'Your request to join a run is declined'), ('test', 'A test'), ('confirm', 'Whether an address is theirs'), ('off', 'Their webhook was switched off')], max_length=8),
        ),
    )
