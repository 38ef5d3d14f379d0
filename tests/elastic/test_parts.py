"""The parts of a session that need no peers: what the ranks decide, stripes, trees, and the order of batches."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
)

from instep.elastic import Session, body, data, trees
from instep.elastic.ballot import NOBODY, Decision, RankState, decide
from instep.elastic.partners import partner_of, partners
from instep.elastic.randomness import derive
from instep.elastic.transfer import Piece, stripes
from instep.errors import InvalidCall, SessionMisuse


def test_whoever_has_passed_a_vote_takes_the_others_along() -> None:
    states = [RankState(7), RankState(6, in_vote=True), RankState(0, standby=True)]
    assert [decide(state, states) for state in states] == [Decision.REDO, Decision.FORWARD, Decision.REDO]
    states = [RankState(6), RankState(6, in_vote=True), RankState(0, standby=True)]
    assert {decide(state, states) for state in states} == {Decision.REDO}
    assert decide(RankState(0, standby=True), [RankState(0, standby=True)] * 3) is Decision.IMPOSSIBLE
    for strange in (RankState(5, in_vote=True), RankState(6)):
        assert decide(strange, [RankState(7), strange]) is Decision.IMPOSSIBLE


def test_all_ranks_decide_for_the_same_step() -> None:
    kinds = [RankState(3), RankState(3, in_vote=True), RankState(4), RankState(0, standby=True)]
    for states in itertools.product(kinds, repeat=3):
        decisions = [decide(state, states) for state in states]
        if Decision.IMPOSSIBLE in decisions:
            assert set(decisions) == {Decision.IMPOSSIBLE}
            continue
        # Where each rank is when it has done what was decided: at one vote, not before one that anybody has passed.
        pairs = [(state, decision) for state, decision in zip(states, decisions, strict=True) if not state.standby]
        after = {state.vote + (decision is Decision.FORWARD) for state, decision in pairs}
        assert after == {max(state.vote for state, _ in pairs)}


def test_states_survive_their_numbers() -> None:
    states = (RankState(9, node=3, keeps=4, kept_at=8), RankState(1 << 40, in_vote=True), RankState(0, standby=True))
    for state in (*states, RankState(3, settings=5, batches=7)):
        assert RankState.decode(state.encode()) == state


@pytest.mark.parametrize("seed", range(50))
def test_what_only_one_rank_has_is_kept_on_another_node_where_that_can_be(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [chance.randrange(chance.randrange(1, 5)) for _ in range(chance.randrange(2, 12))]
    found = partners(nodes)
    assert sorted(found) == list(range(len(nodes))), "every rank keeps that of one"
    assert all(rank != partner for rank, partner in enumerate(found))
    if max(map(nodes.count, nodes)) * 2 <= len(nodes):
        assert all(nodes[rank] != nodes[partner] for rank, partner in enumerate(found)), (nodes, found)


def test_what_a_lost_rank_had_comes_from_a_survivor_that_has_it_as_it_was_before_this_vote() -> None:
    lost, stale = RankState(0, standby=True, keeps=2, kept_at=7), RankState(7, keeps=2, kept_at=6)
    states = [lost, stale, RankState(0, standby=True), RankState(7, keeps=2, kept_at=7), RankState(7)]
    assert partner_of(2, 7, states) == 3
    assert partner_of(0, 7, states) is None
    assert partner_of(NOBODY, 0, [RankState(0)]) is None


@pytest.mark.parametrize("seed", range(50))
def test_stripes_have_every_byte_once(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((0, 1, 7, 100, 4096)) for _ in range(chance.randrange(6))]
    cut = stripes(sizes, chance.randrange(1, 6))
    found = [(piece.tensor, byte) for stripe in cut for piece in stripe for byte in range(piece.start, piece.end)]
    assert found == [(tensor, byte) for tensor, size in enumerate(sizes) for byte in range(size)]
    lengths = [sum(piece.end - piece.start for piece in stripe) for stripe in cut]
    assert max(lengths) - min(lengths) <= 1
    assert stripes([10], 2) == [[Piece(0, 0, 5)], [Piece(0, 5, 10)]]


def test_trees_survive_their_packing() -> None:
    tree = {
        "state": {0: {"step": torch.tensor(3.0), "average": torch.randn(2, 3)}, 1: {}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "empty": torch.empty(0)}],
        "half": torch.randn(3).half(),
        "strided": torch.randn(4, 4).t(),
        "flags": torch.tensor([True, False]),
        "none": None,
    }
    back = trees.unpack(trees.pack(tree))
    _, given = trees.flatten(tree)
    _, found = trees.flatten(back)
    assert given.keys() == found.keys()
    for path, tensor in given.items():
        assert torch.equal(tensor, found[path])
        assert tensor.dtype == found[path].dtype
    assert back["groups"][0]["betas"] == (0.9, 0.99)
    assert trees.unpack(trees.pack({})) == {}


class Noisy(Dataset[torch.Tensor]):
    """Samples that draw random numbers of all kinds."""

    def __len__(self) -> int:  # noqa: D105
        return 23

    def __getitem__(self, index: int) -> torch.Tensor:  # noqa: D105
        return torch.tensor([index, random.random(), torch.rand(()).item()])


class Lazy(Sampler[int]):
    """An order that is drawn while it is used."""

    def __iter__(self):  # noqa: ANN204, D105
        return (random.randrange(23) for _ in range(23))

    def __len__(self) -> int:  # noqa: D105
        return 23


def loaders() -> dict[str, DataLoader[torch.Tensor]]:
    dataset = Noisy()
    return {
        "in order": DataLoader(dataset, 4),
        "shuffled": DataLoader(dataset, 4, shuffle=True),
        "with a generator": DataLoader(dataset, 4, shuffle=True, generator=torch.Generator()),
        "distributed": DataLoader(dataset, 4, sampler=DistributedSampler(dataset, 2, 1)),
        "drawn as it goes": DataLoader(dataset, 4, sampler=Lazy()),
        "with replacement": DataLoader(dataset, 4, sampler=RandomSampler(dataset, replacement=True)),
        "by workers": DataLoader(dataset, 4, shuffle=True, num_workers=2, drop_last=True),
    }


@pytest.mark.parametrize("kind", loaders())
def test_an_epoch_can_be_taken_up_anywhere(kind: str) -> None:
    source = data.source(loaders()[kind], 5, 1)
    whole = list(source.batches(2, 0))
    assert len(whole) == len(source)
    for start in range(0, len(source) + 1, 2):
        random.seed(start)  # whatever happened before
        again = list(data.source(loaders()[kind], 5, 1).batches(2, start))
        assert len(again) == len(whole) - start
        assert all(torch.equal(one, other) for one, other in zip(again, whole[start:], strict=True))
    assert torch.equal(source.batch(2, 1), whole[1])
    if kind != "in order":
        other_epoch = list(source.batches(3, 0))
        assert not all(torch.equal(one, other) for one, other in zip(other_epoch, whole, strict=True))


def test_data_without_an_order_is_refused_by_name() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self):  # noqa: ANN204
            return iter(range(3))

    for wrong, name in [
        (DataLoader(Stream()), "Stream is an iterable data set"),
        (DataLoader(Noisy(), batch_size=None), "batch_size=None"),
        (Noisy(), "Noisy is a data set"),
        (iter([1]), "list_iterator has no length"),
    ]:
        with pytest.raises(InvalidCall, match=name):
            data.source(wrong, 0, 0)


def test_seeds_differ_in_every_part() -> None:
    seeds = {derive("step", *numbers) for numbers in itertools.product(range(3), repeat=3)}
    assert len(seeds) == 27
    assert all(0 <= seed < 2**63 for seed in seeds)


def training() -> tuple[Session, torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Session(model, optimizer), model, optimizer


def test_a_session_alone_trains_as_any_loop() -> None:
    session, model, optimizer = training()
    loader = DataLoader(TensorDataset(torch.randn(10, 2)), 4)
    done = []
    for epoch in session.epochs(2):
        for (batch,) in session.batches(loader):
            with session.step():
                model(batch).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            done.append((epoch, session.steps))
    assert done == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]
    assert session.state_dict() == {"epoch": 2, "batch": 0, "steps": 6}


def test_a_session_goes_on_where_a_checkpoint_was_made() -> None:
    session, _, optimizer = training()
    session.load_state_dict({"epoch": 1, "batch": 2, "steps": 5})
    seen = []
    for epoch in session.epochs(2):
        for batch in session.batches(range(4)):
            with session.step():
                optimizer.step()
            seen.append((epoch, batch, session.state_dict()))
    # What a checkpoint behind the step says is next.
    assert [(epoch, batch) for epoch, batch, _ in seen] == [(1, 2), (1, 3)]
    assert [(state["batch"], state["steps"]) for _, _, state in seen] == [(3, 6), (4, 7)]


def test_mistakes_are_named() -> None:
    session, _, optimizer = training()
    with pytest.raises(InvalidCall, match=r"outside session.step\(\)"):
        optimizer.step()
    with pytest.raises(InvalidCall, match=r"outside session.batches\(\)"), session.step():
        pass
    with pytest.raises(InvalidCall, match=r"without a session.step\(\)"):
        for _ in session.batches([1, 2]):
            pass
    session, _, _ = training()
    for _ in session.batches([1]):
        with session.step():
            pass
    with pytest.raises(InvalidCall, match="a second time"):
        next(session.batches([1]))
    with pytest.raises(InvalidCall, match="begun already"):
        session.load_state_dict({"epoch": 0, "batch": 0, "steps": 0})
    with pytest.raises(InvalidCall, match="no state_dict"):
        Session(torch.nn.Linear(1, 1), [], state=[object()])  # type: ignore[list-item]
    with pytest.raises(InvalidCall, match="str is no Optimizer"):
        Session(torch.nn.Linear(1, 1), "sgd")  # type: ignore[arg-type]
    session, _, _ = training()
    with pytest.raises(ValueError, match="the body's own"):
        for _ in session.batches([1]):
            with session.step():
                raise ValueError("the body's own")


def steps(session: Session, batches: object, count: int = 1) -> int:
    """Do so many steps for each batch; gives how many batches there were."""
    found = 0
    for _ in batches:  # type: ignore[attr-defined]
        found += 1
        for _ in range(count):
            with session.step():
                pass
    return found


def test_every_epoch_has_one_loop_over_batches_of_its_own() -> None:
    session, _, _ = training()
    for _ in session.epochs(2):
        assert steps(session, iter(session.batches([1, 2]))) == 2
    session, _, _ = training()
    batches = session.batches([1, 2])
    assert steps(session, batches) == 2
    with pytest.raises(SessionMisuse, match="a second loop over the same"):
        steps(session, batches)
    session, _, _ = training()
    batches = session.batches([1])
    with pytest.raises(SessionMisuse, match="was called before the epoch in which its batches are used"):
        for _ in session.epochs(2):
            steps(session, batches)
    session, _, _ = training()
    with pytest.raises(SessionMisuse, match="a second time"):
        for _ in session.epochs(2):
            steps(session, session.batches([1]))
            steps(session, session.batches([2]))


def test_a_step_belongs_to_one_batch() -> None:
    session, _, _ = training()
    with pytest.raises(
        SessionMisuse, match=r"outside session\.batches\(\): a rank that is replaced would train on other"
    ):
        for _ in session.epochs(2):
            steps(session, [1])
    session, _, _ = training()
    with pytest.raises(SessionMisuse, match=r"a second session\.step\(\) for the same batch"):
        steps(session, session.batches([1]), 2)
    session, _, _ = training()
    for _ in session.epochs(2):
        for _ in session.batches([1, 2]):
            with session.step():
                pass
            break
        with pytest.raises(SessionMisuse, match=r"outside session\.batches"), session.step():
            pass
    assert session.state_dict() == {"epoch": 2, "batch": 0, "steps": 2}


class Entered:
    """Stands for a step."""

    redo = False

    def __enter__(self) -> None:  # noqa: D105
        body.check(sys._getframe(1))

    def __exit__(self, *_: object) -> None:  # noqa: D105
        pass


def test_code_behind_a_step_is_refused() -> None:
    step, counts = Entered(), [0]

    def with_step() -> int:
        with step:
            counts[0] += 1
        return counts[0]

    for _ in range(2):
        with step:
            counts[0] += 1
    counts[0] += 1  # behind the loop
    for _ in range(2):
        if counts[0]:
            with step:
                counts[0] += 1
        else:
            counts[0] -= 1
        if step.redo:
            continue
        counts[0] += 1
    for _ in range(2):
        with_step()
    with pytest.raises(InvalidCall, match=r"test_parts.py:\d+: this would also run for a step that was lost"):
        for _ in range(2):
            with step:
                counts[0] += 1
            counts[0] += 1
    with pytest.raises(InvalidCall, match="hint: move it into"):
        for _ in range(2):
            try:
                with step:
                    counts[0] += 1
            finally:
                pass
            print(counts)
    with pytest.raises(InvalidCall, match=r"if session\.redo: continue"):
        for _ in range(2):
            found = with_step()
            counts[0] += found


def test_code_whose_source_is_not_there_is_let_through() -> None:
    exec("with step: pass\nprint(1)", {"step": Entered()})


def test_sessions_need_no_class_that_older_torch_has_not() -> None:
    """Before 2.14, Python cannot derive from torch's Backend."""
    script = (
        "from instep.backend import groups\n"
        "groups.HAS_BACKEND_CLASS = False\n"
        "del groups.GroupBackend\n"
        "import instep.backend.replacement, instep.elastic\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
