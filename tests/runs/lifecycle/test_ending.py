"""A run is made longer, or ended where it is."""

import msgspec
import pytest

from peer_agent.protocol.errors import Problem
from runs.lifecycle import services
from runs.models import Release, Run
from tests.runs.factories import Owned, committed


class TestLonger:
    @pytest.mark.parametrize("state", ["draft", "open", "paused"])
    def test_more_steps_and_nothing_else(self, run: Run, state: str) -> None:
        Run.objects.update(state=state)
        before = run.parsed_recipe
        Run.objects.update(automatic_steps=True)
        services.extend_run(run=run, target_steps=250)
        assert not Run.objects.get().automatic_steps, "they are stated now, also where it becomes a draft again"
        after = run.parsed_recipe
        assert after == msgspec.structs.replace(before, target_steps=250)
        assert "250 steps instead of 100" in run.activity.get().text

    @pytest.mark.parametrize("steps", [99, 100, 10**8])
    def test_it_is_longer_and_within_bounds(self, run: Run, steps: int) -> None:
        with pytest.raises(Problem, match="E316: The run has 100 steps"):
            services.extend_run(run=run, target_steps=steps)
        run.refresh_from_db()
        assert run.parsed_recipe.target_steps == 100

    @pytest.mark.parametrize("state", ["preparing", "finishing", "finished"])
    def test_not_once_it_is_over(self, run: Run, state: str) -> None:
        Run.objects.update(state=state)
        with pytest.raises(Problem, match=f"E315: .*{state}"):
            services.extend_run(run=run, target_steps=250)

    def test_a_coordinator_that_has_not_heard_of_it_does_not_finish_the_run(self, run: Run) -> None:
        services.extend_run(run=run, target_steps=250)
        assert not services.finish_run(run=run, target_steps=100)
        run.refresh_from_db()
        assert run.state == "open"
        assert not Release.objects.exists()
        assert services.finish_run(run=run, target_steps=250)


class TestEarlier:
    def test_it_ends_where_it_is(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        for _ in range(2):
            services.end_run(run=run)
        assert (run.state, run.wanted) == ("open", "finished")
        assert run.activity.filter(kind="ending").count() == 1

    def test_a_paused_run_too(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        services.pause_run(run=run)
        services.end_run(run=run)
        assert (run.state, run.wanted) == ("open", "finished")

    def test_what_was_ended_is_not_paused_or_made_longer(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        services.end_run(run=run)
        services.pause_run(run=run)
        assert (run.state, run.wanted) == ("open", "finished")
        with pytest.raises(Problem, match=r"E315: .*finishing"):
            services.extend_run(run=run, target_steps=250)

    def test_without_a_step_there_is_no_model(self, run: Run) -> None:
        with pytest.raises(Problem, match="E320"):
            services.end_run(run=run)
        run.refresh_from_db()
        assert run.wanted == ""

    @pytest.mark.parametrize("state", ["draft", "preparing", "finishing", "finished"])
    def test_only_a_live_run(self, run: Run, state: str) -> None:
        Run.objects.update(state=state)
        with pytest.raises(Problem, match="E315"):
            services.end_run(run=run)
