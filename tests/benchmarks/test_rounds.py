"""How rounds are made: until they say enough, all contenders in each, busy ones again."""

from __future__ import annotations

import time

import pytest

from benchmarks import rounds
from benchmarks.processes import Failed
from benchmarks.rounds import LEAST, REPEATS, Machine, counted, make_rounds, watched
from tests.benchmarks.test_summary import measurement


class Course:
    """Measures contenders at rates that are given, on a machine that is as busy as given."""

    def __init__(self, *, busy=(), failing=None):
        self.turns = []
        self._busy, self._failing = busy, failing

    def measure(self, name, number):
        self.turns.append((number, name))
        return Failed("ValueError: no") if name == self._failing else measurement(1.0)

    def watch(self, call):
        found = call()
        return found, Machine(0.5 if self.turns[-1][0] in self._busy else 0.0, 0.0)

    def make(self, names="abc", *, settled=lambda made: True, most=6):
        return make_rounds(list(names), self.measure, settled=settled, most=most, watch=self.watch)


def test_each_round_begins_with_another_contender():
    course = Course()
    course.make(settled=lambda made: False, most=4)
    order = ["".join(name for number, name in course.turns if number == i) for i in range(4)]
    assert order == ["abc", "bca", "cab", "abc"]


@pytest.mark.parametrize("enough", [2, LEAST, 5, 9])
def test_rounds_end_when_they_are_settled_or_most_are_made(enough):
    made = Course().make(settled=lambda made: len(made) >= enough, most=7)
    assert len(made) == min(7, max(LEAST, enough))


def test_a_single_round_is_enough_where_it_is_asked_for():
    assert len(Course().make(most=1)) == 1


def test_rounds_on_a_busy_machine_are_made_again_a_few_times():
    made = Course(busy={1, 3}).make()
    assert [each.is_busy for each in made] == [False, True, False, True, False, False]
    assert not any(each.is_busy for each in counted(made))
    always = Course(busy=range(99)).make()
    assert len(always) == LEAST + REPEATS
    assert len(counted(always)) == LEAST


def test_a_contender_that_failed_is_not_tried_again():
    course = Course(failing="b")
    made = course.make()
    assert [name for _, name in course.turns].count("b") == 1
    assert made[0].failures == {"b": "ValueError: no"}
    assert [sorted(each.measured) for each in made] == [["a", "c"]] * LEAST


def test_where_all_fail_there_is_one_round():
    assert len(Course(failing="a").make("a")) == 1


def test_what_a_process_of_ours_takes_is_not_others():
    def work():
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        return 7

    # Only this process can be told apart: on a busy machine the others have a share as well.
    busy, ours = rounds._busy_seconds(), rounds._our_seconds()
    found, machine = watched(work)
    assert found == 7
    assert rounds._our_seconds() - ours >= 0.3
    assert rounds._busy_seconds() - busy >= 0.2
    assert 0 <= machine.others < 1
