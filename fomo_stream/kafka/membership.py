"""The membership of the group under which an instance commits.

The broker accepts a commit of every member of the group's present generation, whether or not the partition is its own.
And the client may renew its membership before it tells which partitions it has lost: when an instance was suspended for
so long that the group has removed it, `rd_kafka_cgrp_handle_JoinGroup` of librdkafka joins again under another member
id, and goes on with its former partitions until the group's leader has assigned them anew. So a commit carries the
membership of the moment when a callback last confirmed which partitions are owned, never a fresh one.
"""

from __future__ import annotations

from typing import Any


class Membership:
    """The confirmed membership of a consumer.

    is_by_broker: the broker assigns (`group.protocol=consumer`, KIP-848). Then the epoch of a member also rises without
    a callback. This is safe: a member that was removed gets another epoch only after its callback for lost partitions.
    """

    def __init__(self, consumer: Any, is_by_broker: bool = False) -> None:
        self._consumer = consumer
        self._is_by_broker = is_by_broker
        self._confirmed: Any = None
        self._refused: Any = None
        self._id = ""  # the member id that owns partitions
        self.was_removed = False  # the group removed this instance, and the client did not say so

    def confirm(self, owns: bool) -> bool:
        """In a callback: the partitions that remain are owned under the membership of now.

        owns: whether there were partitions before. Returns False if they were lost in between; see `was_removed`.
        """
        membership = self._consumer.consumer_group_metadata()
        member_id = self._consumer.memberid()
        if not member_id or (owns and member_id != self._id):
            self._confirmed, self.was_removed = None, True
            return False
        self._confirmed, self._id = membership, member_id
        return True

    def now(self) -> Any:
        """The membership to commit with; None while it is not certain which partitions are owned."""
        if not self._id:
            return None
        fresh = self._consumer.consumer_group_metadata()
        if fresh == self._confirmed:
            return fresh
        member_id = self._consumer.memberid()
        if member_id and member_id != self._id:
            self.was_removed = True
        elif member_id and self._is_by_broker and fresh != self._refused:
            self._confirmed = fresh
            return fresh
        return None

    def refuse(self, membership: Any = None) -> None:
        """The broker refuses this membership (None: whichever it is): nothing is certain until a callback."""
        if membership is None or membership == self._confirmed:
            self._confirmed, self._refused = None, membership

    def lose(self) -> None:
        """No partition is owned any more."""
        self._confirmed, self._id, self.was_removed = None, "", False
