"""Delivery between two delivery layers over any schedule of losses and repetitions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.kd.numbering import KdnetReliable, SerialReliable
from kdleak.kd.packets import Api, PacketType, build_manipulate, memory_union, parse_manipulate
from kdleak.kd.reliable import Role

fates = st.lists(st.integers(0, 2), max_size=120)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([SerialReliable, KdnetReliable]), fates)
def test_requests_and_replies_over_a_lossy_ordered_path(kind, fates) -> None:
    """Each fate says how many copies of a frame arrive; when they run out, all arrive."""
    host, target = kind(Role.HOST, tries=1000), kind(Role.TARGET)
    remaining = list(fates)
    now = 0.0
    asked = 0
    served = []
    replies = []
    answers = []
    target.submit(PacketType.STATE_CHANGE64, b"stop", now)
    stops = 0
    waiting = False
    for _ in range(5000):
        for sender, receiver in ((host, target), (target, host)):
            for frame in sender.take_frames():
                for _ in range(remaining.pop() if remaining else 1):
                    receiver.on_frame(frame, now)
        while target.inbox:
            request = parse_manipulate(target.inbox.popleft().payload)
            served.append(request.union[:8])
            answers.append(build_manipulate(request.api, 0, request.union, request.union[:8]))
        if answers and target.idle:
            target.submit(PacketType.STATE_MANIPULATE, answers.pop(0), now)
        while host.inbox:
            packet = host.inbox.popleft()
            if packet.type == PacketType.STATE_CHANGE64:
                stops += 1
            else:
                replies.append(parse_manipulate(packet.payload).data)
                waiting = False
        if stops and host.idle and not waiting and asked < 8:
            asked += 1
            waiting = True
            request = build_manipulate(Api.READ_VIRTUAL, 0, memory_union(asked, 8))
            host.submit(PacketType.STATE_MANIPULATE, request, now)
        if len(replies) == 8:
            break
        due = [d for d in (host.next_deadline(), target.next_deadline()) if d is not None]
        if not (host._out or target._out) and due:
            now = max(now, min(due))
        host.tick(now)
        target.tick(now)
    numbers = [number.to_bytes(8, "little") for number in range(1, 9)]
    assert served == numbers
    assert replies == numbers
    assert stops == 1
