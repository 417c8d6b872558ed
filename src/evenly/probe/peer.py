"""Know what one backend was asked, and whether it answers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final, final

from evenly.core.balancing.backend import Backend
from evenly.probe.whereabouts import Target, Whereabouts

__all__ = ["PENDING_SECONDS", "Peer", "Question"]

PENDING_SECONDS: Final = 2.0
"""How long an answer is waited for."""
_QUESTIONS_MAX = 64
# A notice repeats the last nonce that the backend has received.  That is the last one sent, unless
# a question is under way to it, or was lost; two such leave three to choose from.  Who asks faster
# than that hears of the new state in the answers to what is under way.
_NOTICE_QUESTIONS = 3
# After this long a question counts as unanswered, in deciding whether UDP gets through.
_SETTLED_SECONDS = 0.5
_ANSWERING_QUESTIONS = 4
_LOST_QUESTIONS = 5


@final
class Question:
    """Be one question that was sent.  Compared by identity."""

    __slots__ = ("is_answered", "nonce", "number", "on_answer", "peer", "sent_at", "target")

    def __init__(
        self,
        peer: Peer,
        nonce: int,
        target: Target,
        sent_at: float,
        on_answer: Callable[[], None] | None,
    ) -> None:
        self.peer = peer
        self.nonce = nonce
        self.target = target
        self.sent_at = sent_at
        self.on_answer = on_answer
        self.number = peer.asked
        """Its position among the questions to this backend; the first is 1."""
        self.is_answered = False

    def may_be_answered(self, now: float) -> bool:
        """Return whether an answer with this nonce is still waited for."""
        return not self.is_answered and now - self.sent_at <= PENDING_SECONDS

    def may_be_noticed(self) -> bool:
        """Return whether a notice with this nonce is believed."""
        return self.number > self.peer.asked - _NOTICE_QUESTIONS


@final
class Peer:
    """Keep the state of one backend, by its address."""

    __slots__ = (
        "_answered_at",
        "_answered_number",
        "_looked_up_number",
        "asked",
        "backend",
        "questions",
        "whereabouts",
    )

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.whereabouts = Whereabouts(backend.address)
        self.questions: deque[Question] = deque()
        """The last ones sent, oldest first, answered or not."""
        self.asked = 0
        self._answered_at = -math.inf
        # The newest question that was answered, and the newest when the name was last looked up.
        self._answered_number = 0
        self._looked_up_number = 0

    def ask(
        self, nonce: int, target: Target, now: float, on_answer: Callable[[], None] | None
    ) -> Question:
        """Note one question that is being sent."""
        self.asked += 1
        question = Question(self, nonce, target, now, on_answer)
        self.questions.append(question)
        return question

    def pop_old_question(self, now: float) -> Question | None:
        """Take out one question that nothing can refer to any more, if there is one.

        Called before each question, so that there are at most 64 after it.
        """
        questions = self.questions
        # Those that a notice may refer to stay, however old: a client in idle mode asks seldom.
        if len(questions) >= _NOTICE_QUESTIONS and (
            len(questions) >= _QUESTIONS_MAX or now - questions[0].sent_at > PENDING_SECONDS
        ):
            return questions.popleft()
        return None

    def record_answer(self, question: Question, now: float) -> None:
        """Learn that a question was answered."""
        question.is_answered = True
        self._answered_at = now
        if question.number > self._answered_number:
            self._answered_number = question.number
        self.whereabouts.record_answer(question.target)

    def should_look_up(self, now: float) -> bool:
        """Return whether to look its name up: there is no address yet, or nobody answers there.

        Five questions in a row without an answer: a backend that was moved has a new address behind
        the same name.
        """
        if not self.whereabouts.may_look_up(now):
            return False
        heard = max(self._answered_number, self._looked_up_number)
        is_due = self.whereabouts.target(0) is None or (
            self.asked - heard >= _LOST_QUESTIONS and self._settled(now) - heard >= _LOST_QUESTIONS
        )
        if is_due:
            self._looked_up_number = self.asked
        return is_due

    def is_answering(self, now: float) -> bool:
        """Return whether UDP gets through to it and back.

        True if an answer came in the last 2 s, or if one of the last 4 questions that are older
        than 0.5 s was answered.  The first keeps the result steady among many questions, the second
        among few: a client in idle mode asks every 10 s.  False before the first answer.
        """
        if self._answered_number == 0:
            return False
        if now - self._answered_at <= PENDING_SECONDS:
            return True
        # An answered question newer than those 4 would be one answered in the last 0.5 s, so the
        # newest answered one decides.
        return self._answered_number > self._settled(now) - _ANSWERING_QUESTIONS

    def _settled(self, now: float) -> int:
        """Return the number of the newest question that has had its time.

        What is no longer remembered is older; or it was pushed out within 0.5 s by 64 others, where
        nothing depends on one more or less.
        """
        for question in reversed(self.questions):
            if now - question.sent_at >= _SETTLED_SECONDS:
                return question.number
        return self.questions[0].number - 1 if self.questions else 0
