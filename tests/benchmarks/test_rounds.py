"""Tests how rounds are made: all contenders in each, busy ones repeated, until the ratios are settled."""

import subprocess
import sys
import time

import pytest

from benchmarks import rounds
from benchmarks.processes import Failed
from benchmarks.rounds import LEAST, REPEATS, Machine, counted, make_rounds, watched
from tests.benchmarks.test_summary import measurement


class Course:
    """Starts contenders of three turns each, on a machine that is as busy as given."""

    def __init__(self, *, busy=(), failing=None):
        self.turns, self.closed = [], 0
        self._busy, self._failing = busy, failing

    def start(self, name, number):
        try:
            for turn in range(2):
                self.turns.append((number, name))
                if turn == 1 and name == self._failing:
                    yield Failed("ValueError: no")
                yield None
            self.turns.append((number, name))
            yield measurement(1.0)
        finally:
            self.closed += 1

    def watch(self, call):
        found = call()
        return found, Machine(0.5 if self.turns[-1][0] in self._busy else 0.0, 0.0, 1.0)

    def make(self, names="abc", *, settled=lambda made: True, most=6, **options):
        return make_rounds(
            list(names), self.start, settled=settled, most=most, watch=self.watch, **options
        )

    def order(self, number):
        return "".join(name for of, name in self.turns if of == number)


def test_contenders_take_turns_and_each_round_begins_with_another():
    course = Course()
    course.make(settled=lambda made: False, most=4)
    orders = [course.order(number) for number in range(4)]
    assert orders == ["abc" * 3, "bca" * 3, "cab" * 3, "abc" * 3]
    assert course.closed == 12


def test_contenders_that_are_not_together_have_their_turns_one_after_the_other():
    course = Course()
    course.make(together=False, settled=lambda made: False, most=2)
    assert [course.order(number) for number in range(2)] == ["aaabbbccc", "bbbcccaaa"]


def test_what_has_been_started_is_closed_where_rounds_are_interrupted():
    course = Course()

    def watch(call):
        if len(course.turns) == 5:
            raise KeyboardInterrupt
        return call(), Machine(0.0, 0.0)

    with pytest.raises(KeyboardInterrupt):
        make_rounds(list("abc"), course.start, settled=lambda made: True, watch=watch)
    assert course.closed == 3


def test_the_machine_of_a_contender_is_that_of_its_turns_by_their_length():
    turns = [Machine(0.1, 2000.0, 3.0), Machine(0.5, 3000.0, 1.0)]
    assert Machine.over(turns) == Machine(pytest.approx(0.2), pytest.approx(2250.0), 4.0)
    assert Machine.over([Machine(0.1, 7.0)]) == Machine(0.1, 7.0)


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
    assert [name for _, name in course.turns].count("b") == 2
    assert course.order(0) == "abcabcac"
    assert made[0].failures == {"b": "ValueError: no"}
    assert [sorted(each.measured) for each in made] == [["a", "c"]] * LEAST


def test_where_all_fail_there_is_one_round():
    assert len(Course(failing="a").make("a")) == 1


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "alive"])
def test_what_a_process_that_we_started_takes_is_not_others(ended):
    code = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ours = rounds._our_seconds()
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        process.stdout.readline()
        if ended:
            process.communicate(b"\n")
        assert 0.35 <= rounds._our_seconds() - ours < 1.5
        if not ended:
            process.communicate(b"\n")
    assert 0.35 <= rounds._our_seconds() - ours < 1.5


def test_what_this_process_takes_is_not_others():
    def work():
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        return 7

    # Only this process can be distinguished; on a busy machine, others have a share, too.
    busy, ours = rounds._busy_seconds(), rounds._our_seconds()
    found, machine = watched(work)
    assert found == 7
    assert rounds._our_seconds() - ours >= 0.3
    assert rounds._busy_seconds() - busy >= 0.2
    assert 0 <= machine.others < 1
