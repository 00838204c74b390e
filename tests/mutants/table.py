"""One-place changes of the library that once got past every test, and the tests that guard them.

``run.py`` applies them; ``test_mutants.py`` checks that each text is still there.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """A change that a test must notice.

    Args:
        what: goes wrong with it, or is left out.
        file: in which it is made.
        old: the text that is replaced; it is in the file exactly once.
        new: what stands there instead.
        guards: the tests that fail with it, as ``test_file.py::test_name``, whatever its folder.
    """

    what: str
    file: str
    old: str
    new: str
    guards: tuple[str, ...]

    def applied(self, source: str) -> str:
        """Return the changed source.

        Raises:
            ValueError: the text is not in it, or more than once.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.file}: {count} times, not once: {self.old!r}")
        return source.replace(self.old, self.new)


def _mutant(what: str, file: str, old: str, new: str, *guards: str) -> Mutant:
    return Mutant(what, f"stepwise/{file}", old, new, guards)


_SCHEDULES = [
    _mutant(
        "the run of an instant is submitted again after a kill before the row was written",
        "_workflows/schedules.py",
        "if facts_of(store, seal_for(store), run_id) is not None:",
        "if False:",
        "test_schedules.py::test_no_instant_twice_and_with_all_each",
    ),
    _mutant(
        "in the hour that comes twice, a time of the day comes again",
        "_workflows/schedules.py",
        "if found is not None and found > second:",
        "if found is not None:",
        "test_instants.py::test_asked_in_the_hour_that_comes_twice",
    ),
]

_OPERATION = [
    _mutant(
        "retention deletes a run that began anew since it was listed",
        "_runs/verify.py",
        "lambda: journals.facts_of(*place) == facts",
        "lambda: True",
        "test_retention.py::test_a_run_that_began_anew_since_it_was_listed",
    ),
    _mutant(
        "a ledger is deleted while its requests count",
        "_journal/ledger.py",
        "elif found is None or found.is_idle():",
        "else:",
        "test_retention.py::test_ledgers_of_idle_values",
    ),
    _mutant(
        "a run that SIGTERM cut short is not due at the next start",
        "_workflows/up.py",
        "self.note_due(now.until if waits else clock.now())",
        "pass",
        "test_up.py::test_what_a_signal_cut_short_is_due_at_once",
    ),
    _mutant(
        "each question to a store that does not answer keeps one more thread",
        "integrations/prometheus.py",
        "if asking is None or not asking.is_alive():",
        "if True:",
        "test_prometheus.py::test_a_store_that_does_not_answer",
    ),
]

_RESUME = [
    _mutant(
        "a completed effect that the second attempt did not meet is pruned",
        "_checkpoints/checkpoints.py",
        "needed: list[int] = [each[0] for each in state.unused]",
        "needed: list[int] = []",
        "test_second_resume.py::test_an_effect_that_was_not_met_again_outlives_pruning",
    ),
    _mutant(
        "branches entered before the first stop are forgotten by the second",
        "_workflows/frame.py",
        "self.visited.update(blocks.index(path) for path in state.visited if path in blocks)",
        "pass",
        "test_second_resume.py::test_a_branch_that_was_entered_before_the_first_stop_still_counts",
    ),
    _mutant(
        "fingerprints of prefixes are kept whatever was entered since",
        "_workflows/frame.py",
        "here = number, len(self.visited)  #",
        "here = number, 0  #",
        "test_second_resume.py::test_a_branch_that_is_entered_later_is_no_edit",
    ),
    _mutant(
        "a preflight says that a class which is gone loads",
        "_execution/loadable.py",
        'self.fail(f"{module} has no {name} any more")',
        "pass",
        "test_preflight.py::test_a_class_that_was_renamed",
    ),
    _mutant(
        "a preflight begins the runs that a script calls while it is imported",
        "_workflows/begin.py",
        "if memory.only_looks:",
        "if False:",
        "test_preflight.py::test_a_script_without_a_guard",
    ),
    _mutant(
        "a run that loses its place passes a preflight",
        "_workflows/preflight.py",
        'return 2 if self.verdict == "refuses" else int(self.lost)',
        'return 2 if self.verdict == "refuses" else 0',
        "test_preflight.py::test_an_edit_above",
    ),
    _mutant(
        "numbers of calls collide after a resume",
        "_workflows/resume.py",
        "journal.calls = max(journal.calls, state.calls)",
        "pass",
        "test_second_resume.py::test_numbers_of_calls_are_never_used_twice",
    ),
]

_CODE = [
    _mutant(
        "an edited default goes unnoticed",
        "_rewrite/source.py",
        "parts = [self.whole(self.node.args)]",
        "parts = []",
        "test_edits.py::test_edited",
    ),
    _mutant(
        "the address of an object counts as a field of a client",
        "_identity/clients.py",
        "if _ADDRESS not in text:",
        "if True:",
        "test_starts.py::test_a_declared_field_without_a_text",
    ),
    _mutant(
        "a client that a captured step holds does not count",
        "_identity/call_parts.py",
        "_held_by_function(each) or (",
        "{} or (",
        "test_graph.py::test_graphs_whose_nodes_hold_other_values_are_other_runs",
    ),
    _mutant(
        "a client in an object or a container does not count",
        "_identity/call_parts.py",
        "(_held_by_object(each) if objects else {})",
        "{}",
        "test_graph.py::test_graphs_whose_nodes_hold_other_values_are_other_runs",
    ),
    _mutant(
        "an edited finally goes unnoticed",
        "_rewrite/source.py",
        "parts.append(self.whole(item))",
        "pass",
        "test_edits.py::test_edited",
    ),
    _mutant(
        "an edited branch of a handler goes unnoticed",
        "_rewrite/source.py",
        "self.whole(stmt)  # a handler is one piece",
        'self.taken(stmt, f"{here}.body[{n}]", entered)',
        "test_edits.py::test_edited",
    ),
    _mutant(
        "a loop is begun again although its list has changed",
        "_workflows/outlook.py",
        "if values.get(name) is not value or not _holds(value, held)",
        "if values.get(name) is not value",
        "test_resume_loops.py::test_a_loop_over_a_variable_that_changes",
    ),
    _mutant(
        "a statement is expected to do what it did, although a name denotes something else",
        "_workflows/outlook.py",
        "if self.value(name) is not value:",
        "if self.value(name) is not self.value(name):",
        "test_statements.py::test_what_was_drawn_comes_back",
    ),
    _mutant(
        "a file is skipped although what was read of it has changed",
        "_workflows/outlook.py",
        "before.digest != self._digest.digest()",
        "not self._digest",
        "test_resume_loops.py::test_a_file_that_changes",
    ),
    _mutant(
        "the checkpoint before a loop over a file is pruned",
        "_checkpoints/checkpoints.py",
        "pruned = [each for each in pruned if each not in needed]",
        "pass",
        "test_resume_loops.py::test_a_long_file_that_changes",
    ),
    _mutant(
        "a client is made again of a global that has changed",
        "_workflows/frame.py",
        "found[each] = tag(digest(value).encode()).hex()",
        "pass",
        "test_resume_clients.py::test_a_client_whose_argument_is_another_now",
    ),
    _mutant(
        "a call in the head of a with does not keep the block from being entered again",
        "_workflows/frame.py",
        "not is_reenterable(manager) or self.active.progress.done != done):",
        "not is_reenterable(manager)):",
        "test_resume_inside.py::test_what_it_goes_back_before",
    ),
]

_VALUES = [
    _mutant(
        "an attribute that the workflow deleted comes back",
        "_checkpoints/variables.py",
        "            object.__delattr__(live, name)",
        "            pass",
        "test_variables.py::test_what_is_left_behind",
    ),
    _mutant(
        "a dict whose content moved to another key comes back with the old one",
        "_values/trees.py",
        " and [*chain.from_iterable(self.dicts)] == self.keys",
        "",
        "test_variables.py::test_what_is_left_behind",
    ),
    _mutant(
        "attributes that were set in another order are compared as the collector shows them",
        "_values/trees.py",
        "        self.shown = self.shown and same(gc.get_referents(*dicts), values)\n",
        "",
        "test_watch.py::test_attributes_that_were_set_in_another_order_are_compared_by_name",
    ),
    _mutant(
        "a value that joins the newest group is not watched",
        "_checkpoints/references.py",
        "        self.watch.extend(watch)\n",
        "",
        "test_stored_once.py::test_every_change_is_seen",
    ),
    _mutant(
        "items that move from one list to the next are not noticed",
        "_values/trees.py",
        "            [*map(len, lists)] == self.counts\n            and all(",
        "            all(",
        "test_watch.py::test_what_moves_between_containers_is_noticed",
    ),
    _mutant(
        "what a failing child did to the caller's list is lost under replay",
        "_calls/call.py",
        "            lambda: self._changes(call),\n            clean=clean,",
        "            lambda: None,\n            clean=clean,",
        "test_variables.py::test_what_is_left_behind",
    ),
    _mutant(
        "a loop over what is not iterable fails at another place of its line",
        "_rewrite/transform.py",
        """first = ast.copy_location(ask(f"{waits}iter", node.iter), place)""",
        """first = ask(f"{waits}iter", node.iter)""",
        "test_rewrite.py::test_like_the_original",
    ),
    _mutant(
        "a nested function's decorators count to the statement before it",
        "_rewrite/source.py",
        "Place(path, first_line(node), end",
        "Place(path, node.lineno, end",
        "test_source.py::test_places",
    ),
    _mutant(
        "enums of one name in two modules are equal",
        "_values/digest.py",
        """return join(b"e", [string(class_name(cls)), string(value.name)])""",
        """return join(b"e", [string(cls.__qualname__), string(value.name)])""",
        "test_digest.py::test_no_two_share_a_digest",
    ),
    _mutant(
        "views of one memory with two shapes are equal",
        "_values/digest.py",
        "*encoder.items((value.format, value.shape))",
        "*encoder.items((value.format,))",
        "test_digest.py::test_no_two_share_a_digest",
    ),
]

_FAILURES = [
    _mutant(
        "a step of another task makes a failure permanent",
        "_execution/flows.py",
        "            and here in (flow, self.main)\n",
        "",
        "test_async.py::test_a_failure_that_one_task_handles_is_not_handled_by_another",
    ),
    *[
        _mutant(
            f"of what an exception came from, {what} is not followed",
            "_runtime/messages.py",
            "todo += [each.__cause__, each.__context__, *_attached",
            f"todo += [{followed}, *_attached",
            "test_failures.py::test_what_an_error_was_raised_from_is_tried_again",
        )
        for what, followed in [
            ("the context", "each.__cause__"),
            ("the cause", "each.__context__"),
            ("the context behind a cause", "each.__cause__ or each.__context__"),
            ("the cause beside a context", "each.__context__ or each.__cause__"),
        ]
    ],
    _mutant(
        "what a failed group cancelled counts as handled by the clean-up behind it",
        "_execution/flows.py",
        "and (number not in self._cancelled or flow == here or handling is None)",
        "",
        "test_async.py::test_a_side_effect_that_a_failed_group_cancelled_is_in_doubt",
    ),
    _mutant(
        "what a failed group cancelled counts as handled at the end of the run",
        "_execution/flows.py",
        "            again |= {*beside}",
        "            pass",
        "test_async.py::test_a_side_effect_that_a_failed_group_cancelled_is_in_doubt",
    ),
    _mutant(
        "what failed in a task or thread beside the failure counts as handled",
        "_execution/flows.py",
        "at != self.main or n in",
        "n in",
        "test_failures.py::test_what_failed_beside_the_failure_is_tried_again",
    ),
    _mutant(
        "what returned though it was cancelled is recorded as timed out",
        "_calls/async_driver.py",
        "if not task.cancelled() and task.exception() is None:",
        "if False:",
        "test_async.py::test_what_ends_well_when_it_is_cancelled_has_ended_well",
    ),
    _mutant(
        "a timeout does not wait for what it cancelled",
        "_calls/async_driver.py",
        "        task.cancel()\n        await asyncio.wait({task})\n    except",
        "        task.cancel()\n        await asyncio.sleep(0)\n"
        "        return Result(error=timed_out(attempt))\n    except",
        "test_async.py::test_a_step_has_cleaned_up_before_its_timeout_is_raised",
    ),
    _mutant(
        "a cancelled step does not wait for its body",
        "_calls/async_driver.py",
        "        task.cancel()\n        await asyncio.wait({task})\n        raise",
        "        task.cancel()\n        raise",
        "test_async.py::test_a_step_has_cleaned_up_before_its_timeout_is_raised",
    ),
]

_FORKS = [
    _mutant(
        "compensating a fork undoes the child runs of its source",
        "_calls/compensation.py",
        "if facts.forked_from and its_facts.parent not in effects.whose:",
        "if False:",
        "test_fork.py::test_what_is_shared_is_not_undone",
    ),
    _mutant(
        "a fork at a handled failure is refused",
        "_journal/projection.py",
        "(records.Handled, records.Resumed)",
        "records.Resumed",
        "test_fork.py::test_behind_a_handled_failure",
    ),
]

_STORES = [
    *[
        _mutant(
            f"a shared transaction of one run is durable only if {who} relies on it",
            "stores/_group_commit.py",
            "durable=any(batch.durable for batch in batches),",
            f"durable={durable},",
            "test_group_commit.py::test_one_that_must_last_makes_what_it_shares_last",
        )
        for who, durable in [
            ("the last", "batches[-1].durable"),
            ("the first", "batches[0].durable"),
            ("everybody", "all(batch.durable for batch in batches)"),
        ]
    ],
    *[
        _mutant(
            f"a shared transaction of several runs is durable only if {who} relies on it",
            "stores/disk.py",
            "        durable = any(batch.durable for _, _, batch in wanted)",
            f"        durable = {durable}",
            "test_runs_together.py::test_one_run_that_must_last_makes_what_it_shares_last",
        )
        for who, durable in [
            ("everybody", "all(batch.durable for _, _, batch in wanted)"),
            ("the first", "wanted[0][2].durable"),
            ("the last", "wanted[-1][2].durable"),
        ]
    ],
    _mutant(
        "a lease that cannot be written stays locked",
        "stores/disk.py",
        "            self._leases.release(run_id)\n            raise",
        "            raise",
        "test_store_damage.py::test_a_lease_that_could_not_be_written",
    ),
    _mutant(
        "a mark is deleted after its records, so that a kill between tells of a loss",
        "stores/disk.py",
        "            self._marks.delete(hashed(run_id))\n            rows.forget(run_id)\n",
        "            rows.forget(run_id)\n            rows.commit()\n            rows.begin(True)\n"
        "            self._marks.delete(hashed(run_id))\n",
        "test_journal.py::test_a_deletion_that_is_cut_short",
    ),
    _mutant(
        "tasks wait for ever for a write that failed in another thread",
        "stores/_group_commit.py",
        "                _end(left)\n",
        "                pass\n",
        "test_group_commit.py::test_nobody_waits_for_a_write_that_failed_in_another_thread",
    ),
    _mutant(
        "new side effects are made though records of others are lost",
        "_calls/call.py",
        "elif call.effect and active.journal.unknown_effects:",
        "elif False:",
        "test_journal.py::test_a_side_effect_whose_record_is_lost_is_not_made_again",
    ),
    _mutant(
        "a chunk of another time passes for the one that a checkpoint needs",
        "_checkpoints/references.py",
        "        if found and digest_of(each.link for each in chunks) != needs.links:\n"
        "            return False\n",
        "",
        "test_stored_once.py::test_a_chunk_of_another_time_is_not_the_one_that_is_meant",
    ),
    _mutant(
        "a waiting task misses what happened before it began to wait",
        "_calls/async_driver.py",
        "        if bell.changes != operation.seen:\n            return Result(True)\n",
        "",
        "test_stopped_calls.py::test_a_change_before_the_waiting_began_is_seen",
    ),
    _mutant(
        "a waiting thread misses what happened before it began to wait",
        "_calls/driver.py",
        "bell.changes != operation.seen or rung.wait(operation.seconds)",
        "rung.wait(operation.seconds)",
        "test_stopped_calls.py::test_a_change_before_the_waiting_began_is_seen",
    ),
]

_GRAPH = [
    _mutant(
        "a list that a branch left alone sets back what the other one did to it",
        "graph/_execution.py",
        "not same(held, before[key])",
        "held is not before[key]",
        "test_graph.py::test_a_join_keeps_the_list_that_one_branch_changed",
    ),
    _mutant(
        "a join merges its branches in the order in which they arrive",
        "graph/_execution.py",
        "met = sorted((t for t in self._joining if t.node == target), key=self._place)",
        "met = [t for t in self._joining if t.node == target]",
        "test_graph.py::test_a_join_does_not_ask_who_came_first",
    ),
]

_LATER = [  # drawn after the others were guarded
    _mutant(
        "a branch is answered by what an equal call of another one was given",
        "_matching/pool.py",
        "if other.branch != call.branch or self._is_of_other_code(other, call):",
        "if self._is_of_other_code(other, call):",
        "test_graph.py::test_a_branch_does_not_get_what_another_one_was_given",
    ),
    _mutant(
        "a base undoes what its adopted branch goes on from",
        "_calls/compensation.py",
        "            and (self.announced[each.call.number].number > last or self.heir_of(each))\n",
        "",
        "test_adopting.py::test_what_a_branch_shares_is_undone_once",
    ),
    _mutant(
        "a branch whose adoption was cut off goes on as if nobody had adopted it",
        "_workflows/begin.py",
        "if branch or journals.is_half_adopted(call.store, seal, facts):",
        "if branch:",
        "test_adopting.py::test_whoever_goes_on_finishes_an_adoption",
    ),
    _mutant(
        "a branch that replays from the top loses its variables",
        "_workflows/resume.py",
        "        if not lost:\n",
        "        if True:\n",
        "test_adopting.py::test_the_variables_of_a_branch_are_not_lost",
    ),
    _mutant(
        "a score is answered by that of another object",
        "_workflows/evaluation.py",
        "digest.combine(name, code, held)",
        "digest.combine(name, code)",
        "test_evaluation.py::test_another_object_scores_anew",
    ),
    _mutant(
        "a call is still said to be a recorded act that was undone",
        "_journal/projection.py",
        "        self._take_back((number,))\n",
        "",
        "test_stopped_calls.py::test_an_act_that_was_undone_is_no_other_call_any_more",
    ),
    _mutant(
        "a new call gets the idempotency key that a recorded one has",
        "_calls/call.py",
        "            if pool.taken:\n                call = apart",
        "            if False:\n                call = apart",
        "test_which_call.py::test_each_act_has_an_idempotency_key_of_its_own",
    ),
    _mutant(
        "a step around a step around what was undone still answers",
        "_execution/active_run.py",
        "scope.inner.extend((number, *inner))",
        "scope.inner.append(number)",
        "test_compensation.py::test_what_was_undone_inside_is_made_anew",
    ),
    _mutant(
        "a failure that was handled before another one ended the run is tried again",
        "_execution/active_run.py",
        "        if gone_on:\n            items.insert(0,",
        "        if False:\n            items.insert(0,",
        "test_failures.py::test_a_failure_that_was_handled_before_another_ended_the_run",
    ),
    _mutant(
        "a failure that was handled before the last checkpoint is tried again by a replay",
        "_workflows/frame.py",
        "        active.note_handled()\n",
        "",
        "test_edits.py::test_a_failure_that_was_handled_before_the_stop",
    ),
    _mutant(
        "a global that cannot be recorded keeps the run from its checkpoints",
        "_workflows/frame.py",
        "if root_of(n) not in over and not n.startswith(_GLOBAL)",
        "if root_of(n) not in over",
        "test_module_state.py::test_a_global_that_cannot_be_recorded",
    ),
    _mutant(
        "what a head counts is shown although records came after it",
        "_journal/journal.py",
        "Tally(*tally) if tally[0] == last else None",
        "Tally(*tally)",
        "test_many_runs.py::test_what_is_settled_after_the_end_is_listed",
    ),
    _mutant(
        "a head that has the words of a tag is listed unseen",
        "_runs/run.py",
        "(tags and not tags.items() <= facts.tags.items()) or",
        "",
        "test_many_runs.py::test_a_rare_tag_is_found_by_its_word",
    ),
    _mutant(
        "a freed cell is no place for another one",
        "_journal/seal.py",
        "not any(data[place : place + CELL_KEY])",
        "place >= len(data)",
        "test_file_cells.py::test_a_removed_cell_is_filled_again",
    ),
    _mutant(
        "side effects before a checkpoint count as lost behind it",
        "_journal/journal.py",
        "total = max(self.position.effects, marked.effects) - start.effects",
        "total = max(self.position.effects, marked.effects)",
        "test_journal.py::test_effects_before_the_place_that_is_read_from_are_not_lost",
    ),
    _mutant(
        "a tool inside another one is undone before that",
        "_calls/compensation.py",
        "key=lambda each: each.entry.number",
        "key=lambda each: self.announced[each.call.number].number",
        "test_compensation.py::test_what_ended_last_is_undone_first",
    ),
    _mutant(
        "a join goes on with the visits of the branch that it met last",
        "graph/_execution.py",
        "visits[name] = max(visits.get(name, 0), times)",
        "visits[name] = count",
        "test_graph.py::test_a_join_counts_the_visits_of_the_longest_way",
    ),
    _mutant(
        "attempts of a node that an earlier process made do not count",
        "graph/_execution.py",
        "            visit.attempts.next_delay(error)\n        return error",
        "            pass\n        return error",
        "test_graph.py::test_attempts_of_an_earlier_process_count",
    ),
    _mutant(
        "a child that failed and cleaned up as the process died is tried again",
        "_workflows/begin.py",
        "cut_off=call.number in parent.cut_off",
        "cut_off=False",
        "test_resume_inside.py::test_a_child_that_failed_as_the_process_died",
    ),
    _mutant(
        "what a failed attempt of a node changed inside the memory stays",
        "graph/_execution.py",
        "memory = self._memory(token, copied(token.memory))",
        "memory = self._memory(token, token.memory)",
        "test_graph.py::test_retries_roll_back_what_was_changed_inside",
    ),
    _mutant(
        "the log of a process is not flushed",
        "stores/_process_log.py",
        "            number = self._number\n            flush(self._descriptor)\n",
        "            number = self._number\n",
        "test_power_cut.py::test_a_power_cut_while_a_log_changes_hands",
    ),
    _mutant(
        "the name of a log is not flushed",
        "stores/_process_log.py",
        "                sync(folder)\n                sync(os.path.dirname(folder))\n",
        "",
        "test_power_cut.py::test_a_power_cut_while_a_log_changes_hands",
    ),
    _mutant(
        "an owner goes on with a log that was fenced",
        "stores/_process_log.py",
        "there.st_mode & _WRITABLE and there.st_nlink",
        "there.st_nlink",
        "test_process_log.py::test_a_fenced_writer",
    ),
    _mutant(
        "an owner goes on with a log that was deleted",
        "stores/_process_log.py",
        "there.st_mode & _WRITABLE and there.st_nlink",
        "there.st_mode & _WRITABLE",
        "test_logs.py::test_a_log_that_somebody_deletes",
    ),
    _mutant(
        "a frame that is written during a flush counts as flushed",
        "stores/_process_log.py",
        "            number = self._number\n            flush(self._descriptor)\n",
        "            flush(self._descriptor)\n            number = self._number\n",
        "test_process_log.py::test_a_frame_that_is_written_during_a_flush",
    ),
    _mutant(
        "the name of the folder of logs is not flushed",
        "stores/_process_log.py",
        "                sync(os.path.dirname(folder))\n",
        "",
        "test_process_log.py::test_the_first_flush_covers_the_name",
    ),
    _mutant(
        "a frame is torn if the system takes a part of it",
        "stores/_process_log.py",
        "            if written < size:",
        "            if False:",
        "test_process_log.py::test_a_system_that_writes_less_than_it_is_given",
    ),
    _mutant(
        "a reader that was too early twice takes a frame for damaged",
        "stores/_process_log.py",
        "            if data.startswith(left):\n                break\n",
        "            break\n",
        "test_process_log.py::test_frames_that_are_written_behind_the_reader",
    ),
    _mutant(
        "a run's frames continue those of its earlier epoch",
        "stores/_process_log.py",
        " or tail.generation != generation or tail.epoch != epoch:",
        " or tail.generation != generation:",
        "test_logged_store.py::test_a_run_that_is_begun_again_while_its_old_frames_are_kept",
    ),
    _mutant(
        "a taker misses what was written since it last looked",
        "stores/_process_log.py",
        "        reader = LogReader(path)\n        reader.look()\n        return reader",
        "        return self._readers.get(name) or self.read(name)",
        "test_logged_store.py::test_a_taker_that_had_looked_before",
    ),
    _mutant(
        "a taker forgets what an owner without its lock wrote meanwhile",
        "stores/disk.py",
        "            if rows.lease(run_id) != row:\n                return False",
        "            if False:\n                return False",
        "test_logged_store.py::test_an_owner_without_its_lock_that_writes_during_a_takeover",
    ),
]

_WAITS = [
    _mutant(
        "a wait that is resumed begins anew",
        "_calls/waiting.py",
        "until=min(ends, default=None),",
        "until=waiting.until,",
        "test_suspending.py::test_a_moment_that_is_computed_anew_ends_the_same",
    ),
    _mutant(
        "the record of a wait is lost with the power",
        "_calls/waiting.py",
        "yield Write(active, (waiting, payload))",
        "yield Write(active, (waiting, payload), durable=False)",
        "test_power_cut.py::test_a_power_cut_while_a_run_waits",
    ),
    _mutant(
        "a message is lost with the power",
        "_journal/logs.py",
        "at = log.append(epoch, end, [(header, value)]).at",
        "at = log.append(epoch, end, [(header, value)], durable=False).at",
        "test_power_cut.py::test_a_power_cut_while_a_run_is_steered",
        "test_power_cut.py::test_a_power_cut_while_signals_are_sent",
    ),
    _mutant(
        "a request to cancel a run that nobody executes is lost with the power",
        "_runs/messages.py",
        "lease.epoch, fsync=True)",
        "lease.epoch, fsync=False)",
        "test_power_cut.py::test_a_power_cut_while_a_run_is_steered",
    ),
    _mutant(
        "a ring between the look and the wait is not heard",
        "_calls/driver.py",
        "Result(bell.changes != operation.seen or rung.wait(operation.seconds))",
        "Result(rung.wait(operation.seconds))",
        "test_suspending.py::test_a_ring_between_the_look_and_the_wait_is_heard",
    ),
    _mutant(
        "a ring between the look and the wait is not heard",
        "_calls/async_driver.py",
        "if bell.changes != operation.seen:",
        "if False:",
        "test_suspending.py::test_a_ring_between_the_look_and_the_wait_is_heard",
    ),
    _mutant(
        "messages that are held count as taken in a checkpoint",
        "_execution/waits.py",
        "low = min(open_) - 1 if open_ else self._last[name]",
        "low = self._last[name]",
        "test_pauses.py::test_what_a_checkpoint_keeps_of_the_inbox",
    ),
    _mutant(
        "of a checkpoint, only the later messages count as taken",
        "_execution/waits.py",
        "return message.number <= low or message.number in self._others",
        "return message.number in self._others",
        "test_pauses.py::test_what_a_checkpoint_keeps_of_the_inbox",
    ),
    _mutant(
        "a suspended run is woken by messages that it has seen",
        "_calls/waiting.py",
        "seen=each.inbox.seen,",
        "seen=0,",
        "test_suspending.py::test_a_message_that_was_taken_wakes_nothing",
    ),
    _mutant(
        "a message that is read during the clean-up wakes nobody",
        "_workflows/execute.py",
        "seen = min((each.seen for each in waits if not each.run), default=active.inbox.seen)",
        "seen = active.inbox.seen",
        "test_suspending.py::test_a_message_that_comes_during_the_clean_up_is_not_missed",
    ),
    _mutant(
        "what came for a run counts whatever it waits for",
        "_workflows/handles.py",
        "and (run_id, came.kind, came.name) in wanted)",
        "and run_id in last)",
        "test_supervisor.py::test_messages_that_are_waited_for",
    ),
    _mutant(
        "the timeout of a workflow does not wake a suspended run",
        "_calls/waiting.py",
        "ends = parked.wait.until, each.steering.deadline",
        "ends = (parked.wait.until,)",
        "test_suspending.py::test_the_timeout_of_a_workflow_ends_its_waits",
    ),
    _mutant(
        "the handle of a run that cannot be woken waits for ever",
        "_workflows/handles.py",
        "opened = True\n        tell_failure(top, error)\n        handle._end(error=error)",
        "opened = True\n        tell_failure(top, error)",
        "test_suspending.py::test_a_store_that_fails_while_a_started_run_waits",
    ),
    _mutant(
        "an answer to an earlier question counts",
        "_runs/questions.py",
        "next((each for each in self._named(step) if each.ticket == ticket), None)",
        "next(iter(self._named(step)), None)",
        "test_approvals.py::test_state_that_no_argument_shows",
    ),
    _mutant(
        "a yes is good for other arguments",
        "_calls/approvals.py",
        "if n not in terms or not _is_tag(seal, ticket, n, terms[n], tags)]",
        "if n not in terms]",
        "test_approvals.py::test_state_that_no_argument_shows",
    ),
    _mutant(
        "what changes while the intent is written is done unapproved",
        "_calls/approvals.py",
        "if not made._changed(asked):",
        "if True:",
        "test_approvals.py::test_an_attribute_that_changes",
    ),
    _mutant(
        "a run that is resumed meets the request that had cancelled it",
        "_execution/active_run.py",
        'if message.kind == "cancel" and message.number > facts.cancels:',
        'if message.kind == "cancel":',
        "test_cancelling.py::test_it_is_resumed_if_asked_for",
    ),
    _mutant(
        "a run that cancels itself executes its next step",
        "_runs/messages.py",
        "each.steering.look_soon()",
        "pass",
        "test_cancelling.py::test_a_run_that_cancels_itself",
    ),
    _mutant(
        "a step begins at the limit of a budget",
        "_execution/budget.py",
        "if round(n, 9) >= limit and",
        "if round(n, 9) > limit and",
        "test_budgets.py::test_no_step_begins_beyond_the_budget",
    ),
    _mutant(
        "the last death is not counted",
        "_journal/run_facts.py",
        "return self.deaths + self.open, self.stuck + self.open",
        "return self.deaths, self.stuck",
        "test_supervisor.py::test_deaths_are_counted_from_the_journal",
    ),
    _mutant(
        "versions that take turns forget the deaths",
        "_journal/run_facts.py",
        "self.deaths, self.stuck = self.other_deaths.pop(record.code, [0, 0])",
        "self.deaths, self.stuck = 0, 0",
        "test_supervisor.py::test_versions_that_take_turns_count_their_deaths",
    ),
    _mutant(
        "a run is taken from the supervisor that has its code",
        "_workflows/up.py",
        " and not self._is_left_to_another_version(run)",
        "",
        "test_two_versions.py::test_a_run_stays_with_its_version",
    ),
    _mutant(
        "a submitted run that another process has begun is begun here, too",
        "_workflows/up.py",
        "return found is not None and found[0] == run.facts",
        "return True",
        "test_submitted.py::test_a_run_that_somebody_began_is_not_begun_again",
    ),
    _mutant(
        "all submitted runs are planned at once",
        "_workflows/up.py",
        "itertools.islice(found, _DRAWN)",
        "found",
        "test_submitted.py::test_looking_does_not_cost_more_with_many",
    ),
    _mutant(
        "a submitted run begins, so that it can be cancelled",
        "_runs/messages.py",
        "if facts.is_submitted:",
        "if facts.pruned:",
        "test_submitted.py::test_cancelled_before_it_begins",
    ),
    _mutant(
        "the first death doubles the pause",
        "_workflows/up.py",
        "2.0 ** (deaths.attempts - 1)",
        "2.0**deaths.attempts",
        "test_supervisor.py::test_backoff",
    ),
    _mutant(
        "a run that died at the same step three times is tried again",
        "_journal/summary.py",
        "self.stuck >= DEADLY and",
        "self.stuck > DEADLY and",
        "test_up.py::test_a_run_that_kills_its_process",
    ),
]

_PAGE = [
    _mutant(
        "the page answers under any name",
        "ui/_access.py",
        "self._hosts is not None and name not in self._hosts",
        "self._hosts is None and not name",
        "test_access.py::test_a_foreign_host_is_refused",
    ),
    _mutant(
        "the page opens without its cookie",
        "ui/_access.py",
        'if _same(request.cookies.get(self.cookie, ""), self.session):',
        "if True:",
        "test_access.py::test_without_the_token_nothing_is_shown",
    ),
    _mutant(
        "another site acts",
        "ui/_access.py",
        'return bool(origin) and origin == request.headers.get("host")',
        "return True",
        "test_access.py::test_a_foreign_origin_does_nothing",
        "test_served.py::test_another_site_does_not_get_in",
    ),
    _mutant(
        "a program needs no token",
        "ui/_access.py",
        'if not _same(request.headers.get("authorization", ""), f"Bearer {self.token}"):',
        "if False:",
        "test_served.py::test_without_the_token_nobody_gets_in",
    ),
    _mutant(
        "a coding agent is offered what nobody allowed",
        "mcp/_server.py",
        "**{name: ACTIONS[name] for name in allowed}",
        "**ACTIONS",
        "test_looking.py::test_only_tools_that_look_are_offered",
    ),
    _mutant(
        "an answer is as long as what was recorded",
        "_runs/fitting.py",
        "if (length or _length)(found) <= limit:",
        "if True:",
        "test_looking.py::test_an_answer_is_short",
    ),
    _mutant(
        "what a coding agent does is in the name of the user",
        "mcp/_server.py",
        'acting_as(f"mcp {_client_of(context)} for {this_person()}")',
        "acting_as(this_person())",
        "test_acting.py::test_an_approval_is_answered",
    ),
    _mutant(
        "a form needs no token",
        "ui/_access.py",
        'if not _same(fields.get("token", [""])[0], self.form_token(who)):',
        "if False:",
        "test_access.py::test_a_forged_form_token_does_nothing",
    ),
    _mutant(
        "the cookies of two servers are one",
        "ui/_access.py",
        "self.cookie = f\"stepwise-{self._sign('name')[:12]}\"",
        'self.cookie = "stepwise"',
        "test_access.py::test_two_processes_have_two_tokens",
    ),
    _mutant(
        "the token leads to another site",
        "ui/_access.py",
        'for part in raw.partition(b"?")[0].split(b"/") if part]',
        'for part in raw.partition(b"?")[0].split(b"/")[1:]]',
        "test_access.py::test_the_token_leads_to_no_other_site",
    ),
    _mutant(
        "a user reads another one's run over HTTP",
        "http/_app.py",
        "return self._name is True or facts.tags.get(BY) == self._name",
        "return True",
        "test_requests.py::test_each_user_has_her_runs",
    ),
    _mutant(
        "a run id over HTTP is used again for another call",
        "http/_app.py",
        "if facts.workflow != workflow.full_name or differing:",
        "if False:",
        "test_requests.py::test_the_same_id_is_the_same_run",
    ),
    _mutant(
        "an event stream keeps its server from ending",
        "ui/_events.py",
        "work = [self._send(send), _gone(receive), end_of_server()]",
        "work = [self._send(send), _gone(receive)]",
        "test_following.py::test_a_server_that_ends_ends_its_streams",
    ),
    _mutant(
        "nobody continues a run whose server is gone",
        "http/_following.py",
        "await self._continue(run, reading)",
        "pass",
        "test_following.py::test_a_reader_revives_a_run",
    ),
    _mutant(
        "a page of the AI SDK shows what was withdrawn",
        "http/_ai_sdk.py",
        '"id": text.id, "providerMetadata": _WITHDRAWN}',
        '"id": text.id}',
        "test_ai_sdk.py::test_what_was_withdrawn_is_marked",
    ),
    _mutant(
        "a page to look at is written through",
        "stores/__init__.py",
        "ReadOnlyStore(made) if to_read else made",
        "made",
        "test_access.py::test_a_page_to_look_at_changes_nothing",
    ),
    _mutant(
        "a page to look at opens its database to write",
        "stores/disk.py",
        "return Rows(self.path, self.path, to_read=self._to_read)",
        "return Rows(self.path, self.path)",
        "test_access.py::test_a_database_is_opened_to_read_only",
    ),
    _mutant(
        "a page stays open when the login has ended",
        "ui/_app.py",
        "if time.monotonic() - asked > _TRUSTED:",
        "if False:",
        "test_live.py::test_a_login_that_ended_ends_the_events",
    ),
    _mutant(
        "a run with two dots has an address that browsers change",
        "ui/_access.py",
        'if part in (".", "..") else text',
        "if False else text",
        "test_actions.py::test_each_run_has_an_address",
    ),
    _mutant(
        "who acts is the user of the server",
        "ui/_actions.py",
        "with acting_as(who):",
        'with acting_as(""):',
        "test_access.py::test_who_acts_is_recorded",
    ),
    _mutant(
        "a run of a supervisor is started beside it",
        "ui/_actions.py",
        'if supervisor and status in ("crashed", "suspended", "cancelling"):',
        "if False:",
        "test_programs.py::test_a_run_of_a_supervisor_is_left_to_it",
    ),
    _mutant(
        "a program is started twice",
        "ui/_actions.py",
        "if before is not None and not before.has_ended:",
        "if False:",
        "test_programs.py::test_a_program_is_started_once",
    ),
    _mutant(
        "a page that is opened late misses what happened before",
        "ui/_live.py",
        "if found or each.is_new or",
        "if found or",
        "test_live.py::test_one_watcher_looks_for_all_pages",
    ),
    _mutant(
        "an answered question stays in the inbox",
        "ui/_reading.py",
        "        for run_id in self._bell.look():",
        "        for run_id in ():",
        "test_open_matters.py::test_a_question_until_it_is_answered",
    ),
    _mutant(
        "a page of a list begins with the last run of the page before",
        "stores/_rows.py",
        'which.append("place < (SELECT place FROM Heads WHERE run = ?)")',
        'which.append("place <= (SELECT place FROM Heads WHERE run = ?)")',
        "test_search.py::test_pages",
    ),
]

_RECORDED = [
    _mutant(
        "a large argument that the body changes is recorded as it became",
        "_execution/inputs.py",
        "return bytes(dump((dict(values), [], {}, []), _InputReducers(self.around)))",
        "return dump((dict(values), [], {}, []), _InputReducers(self.around))",
        "test_recorded_arguments.py::test_large_buffers_are_copied",
    ),
    _mutant(
        "the arguments of a step refer to a chunk that is deleted with its checkpoint",
        "_checkpoints/references.py",
        "if entry is None or entry[0].number < 0:",
        "if entry is None:",
        "test_recorded_arguments.py::test_references_survive_checkpoints_that_are_pruned",
    ),
    _mutant(
        "a secret inside of an argument is recorded",
        "_execution/inputs.py",
        "clean = not secrets.found_in(data)",
        "clean = True",
        "test_recorded_arguments.py::test_no_byte_of_a_secret_is_on_the_disk",
    ),
    _mutant(
        "of several arguments that are written at once, one is left",
        "stores/_group_commit.py",
        "for batch in batches for name, data in batch.put.items()}",
        "for batch in batches[-1:] for name, data in batch.put.items()}",
        "test_recorded_arguments.py::test_asynchronous_steps",
    ),
    _mutant(
        "a hidden argument is shown under another name",
        "_execution/frames.py",
        "if name in self._names or known is not None:",
        "if name in self._names:",
        "test_recorded_locals.py::test_hidden_arguments",
    ),
    _mutant(
        "the arguments of a call that was cut off are those of a later call",
        "_journal/journal.py",
        "self.calls = max(self.calls, *_beside(self.names(INPUTS, FRAMES)).values(), 0)",
        "pass",
        "test_recorded_arguments.py::test_a_call_that_was_cut_off",
    ),
    _mutant(
        "the class of a variable is asked for its name",
        "_values/preview.py",
        "text: str = _name_of_type(type(value))",
        "text: str = type(value).__name__",
        "test_recorded_locals.py::test_the_variables_of_a_failed_step",
    ),
    _mutant(
        "thinning deletes some of the newest",
        "_checkpoints/checkpoints.py",
        "zip(names[:-_NEWEST], numbers, strict=False)",
        "zip(names[:-1], numbers, strict=False)",
        "test_checkpoints.py::test_thinning_keeps_the_newest_and_ever_fewer",
    ),
]

_LIMITS = [
    _mutant(
        "a request ceases to count before its window has ended",
        "_journal/ledger.py",
        "_add(self.over, math.ceil(at / self._slot), requests, tokens)",
        "_add(self.over, int(at / self._slot), requests, tokens)",
        "test_ledger.py::test_a_request_counts_for_a_whole_window",
    ),
    _mutant(
        "a request in flight does not count",
        "_journal/ledger.py",
        "given = [*self.claims.values(), *self.over.values()]",
        "given = [*self.over.values()]",
        "test_ledger.py::test_no_window_has_more_than_the_limit",
    ),
    _mutant(
        "a run that was served keeps its place before the others",
        "_journal/ledger.py",
        "return place._replace(wants=place.wants[many:], since=now) if many else place",
        "return place._replace(wants=place.wants[many:]) if many else place",
        "test_ledger.py::test_a_run_that_was_served_goes_behind_the_others",
    ),
    _mutant(
        "what a dead process held is never given back",
        "_journal/ledger.py",
        "return owner is None or (bool(owner.since) and repr(owner.since) != since)",
        "return False",
        "test_limited.py::test_holders",
    ),
    _mutant(
        "a refused attempt of a side effect is made again",
        "_calls/limited.py",
        "return whole and not made and (clean or not call.effect)",
        "return whole and not made",
        "test_limited.py::test_a_refused_side_effect",
    ),
]

_RERUNS = [
    _mutant(
        "a rerun does not notice a call that was left out",
        "_workflows/rerun.py",
        "if skipped is not None and _is_alone(active):",
        "if False:",
        "test_rerun.py::test_where_edited_code_first_differs",
    ),
    _mutant(
        "a rerun makes calls that are not on record",
        "_workflows/rerun.py",
        "raise self._stop(active, self._another(call, expected, None))",
        "return Result()",
        "test_rerun.py::test_where_edited_code_first_differs",
    ),
    _mutant(
        "a secret's value is in an exported test",
        "_runs/replica.py",
        "            cleaned = MASK",
        "            cleaned = value",
        "test_rerun.py::test_secrets_are_masked",
    ),
    _mutant(
        "a pickle with a secret is in an exported test",
        "_runs/replica.py",
        "if any(self.hides(text) or self.text(text) != text for text in texts_in(data)):",
        "if False:",
        "test_rerun.py::test_a_masked_result",
    ),
]

_STREAMS = [
    _mutant(
        "what a failed attempt said stays",
        "_calls/call.py",
        "active.emissions.withdraw(call.number)",
        "pass",
        "test_streams.py::test_a_failed_attempt_is_withdrawn",
    ),
    _mutant(
        "what nothing has kept stays before what is said anew",
        "_execution/emissions.py",
        "self._withdraw_old(name, stream, {*around})",
        "pass",
        "test_emissions.py::test_any_program_killed_anywhere",
    ),
    _mutant(
        "a recorded step may lose what it said",
        "_execution/active_run.py",
        "self.emissions.flush()",
        "pass",
        "test_stream_crashes.py::test_what_a_recorded_step_said_is_on_record",
    ),
    _mutant(
        "who saw a withdrawn item is not told",
        "_runs/streaming.py",
        "if each[1] <= self._last < each[0]]",
        "if each[1] < self._last < each[1]]",
        "test_streams.py::test_a_failed_attempt_is_withdrawn",
    ),
]

_CACHE = [
    _mutant(
        "a call that changed its arguments is answered, without the change",
        "_calls/cached.py",
        "if self.ended is None or self.changed:",
        "if self.ended is None:",
        "test_cached.py::test_a_change_that_cannot_be_recorded_is_not_answered",
    ),
    _mutant(
        "a step in which a tool acted is answered",
        "_calls/cached.py",
        "more = record.inner or (",
        "more = (",
        "test_cached.py::test_what_makes_other_calls_or_speaks_is_not_answered",
    ),
    _mutant(
        "a result is a copy of an object that the caller has",
        "_calls/cached.py",
        "if more or not is_whole or _holds(self.identity.held, value):",
        "if more or not is_whole:",
        "test_cached.py::test_what_shares_objects_is_not_answered",
    ),
    _mutant(
        "a run is answered by its own results",
        "_calls/cached.py",
        "if self.entry is None or self.entry.run != made_by:",
        "if True:",
        "test_cached.py::test_a_run_is_not_answered_by_its_own_results",
        "test_request_cache.py::test_a_run_that_asks_again_gets_another_answer",
    ),
    _mutant(
        "the code of an argument's class counts for nothing",
        "_calls/cached.py",
        'return join(b"V", [encoded, *self._methods(cls)])',
        "return encoded",
        "test_cached.py::test_edits_are_other_calls",
    ),
    _mutant(
        "two equal objects count as one",
        "_calls/cached.py",
        'return join(b"V", [encoded, b"%d" % known[1]])',
        "return encoded",
        "test_cached.py::test_two_names_of_one_object",
    ),
    _mutant(
        "a client of an SDK counts by its known fields alone",
        "_calls/cached.py",
        "if held is not None:",
        "if False:",
        "test_cached.py::test_clients_count_by_all_that_they_hold",
    ),
    _mutant(
        "code of the submitting script is recorded, and up leaves its run",
        "_workflows/submitted.py",
        "if not seen.of_script:",
        "if True:",
        "test_submitted.py::test_code_of_the_script_is_refused",
    ),
    _mutant(
        "a run whose deletion is in progress counts as damaged",
        "_runs/steps.py",
        "if facts is None and store.owner(run_id) is None:",
        "if facts is None:",
        "test_retention.py::test_a_run_that_is_looked_at_while_it_is_deleted",
    ),
    _mutant(
        "code that was edited while the program runs has a key",
        "_identity/following.py",
        "if follower is None or _unread:",
        "if follower is None:",
        "test_cached.py::test_an_edited_module_while_the_program_runs",
    ),
]

_BRANCHES = [
    _mutant(
        "a branch makes its side effects",
        "_calls/steps.py",
        "if run.effects and self.effect:",
        "if False:",
        "test_branches.py::test_refused",
        "test_branch_programs.py::test_no_side_effect_gets_out_of_killed_branches",
    ),
    _mutant(
        "a child run of a branch makes side effects",
        "_execution/active_run.py",
        "(facts if parent is None else parent).effects",
        "facts.effects",
        "test_branches.py::test_what_would_get_out",
    ),
    _mutant(
        "a run whose records branches share is deleted",
        "_runs/verify.py",
        "    if branches:\n",
        "    if False:\n",
        "test_branches.py::test_forget_names_the_branches",
    ),
    _mutant(
        "a base deletes records that a branch shares",
        "_checkpoints/checkpoints.py",
        " and not self._is_shared(facts)",
        "",
        "test_branches.py::test_a_shared_journal_is_not_pruned",
    ),
    _mutant(
        "a branch pays for what it shares",
        "_journal/records.py",
        "Entry(entry.number, uncounted(record), payload)",
        "Entry(entry.number, record, payload)",
        "test_branches.py::test_what_came_before_is_shared",
    ),
]

_CHOICES = [
    _mutant(
        "of equal scores the last one counts",
        "_workflows/best_of.py",
        "if score > scores[best]:",
        "if score >= scores[best]:",
        "test_best_of.py::test_of_equal_scores_the_first_counts",
    ),
    _mutant(
        "what a plain function returned is not recorded",
        "_workflows/best_of.py",
        "        begun = begin(scope, function, calls, finder(function, None))\n"
        "        assert begun is not None  # neither plain, nor a generator\n",
        "        return [lambda c=c: step_of(function).function(*c[0], **c[1])"
        " for c in calls], ()\n",
        "test_best_of.py::test_what_plain_functions_return_is_recorded",
    ),
    _mutant(
        "equal calls of a workflow are begun in the order of the threads",
        "_calls/parallel.py",
        'step._core if hasattr(step, "run_id_for") else None',
        "None",
        "test_threads.py::test_a_map_has_each_result_in_its_place",
    ),
    _mutant(
        "a score is made again at each evaluation",
        "_workflows/evaluation.py",
        'if facts is not None and facts.status == "completed":',
        "if False:",
        "test_evaluation.py::test_called_again_nothing_is_made_again",
    ),
    _mutant(
        "a score keeps what a step said before it was edited",
        "_workflows/evaluation.py",
        "if facts is None or not edits_in(store, seal, run_id):",
        "if True:",
        "test_evaluation.py::test_an_edited_step_of_a_score_is_made_anew",
    ),
    _mutant(
        "two long variations are one in the means",
        "_workflows/evaluation.py",
        'names.append(f"{name} (variation {number})" if is_other else name)',
        "names.append(name)",
        "test_evaluation.py::test_long_variations_are_told_apart",
    ),
]

MUTANTS = [
    *_RESUME,
    *_SCHEDULES,
    *_OPERATION,
    *_CODE,
    *_VALUES,
    *_FAILURES,
    *_FORKS,
    *_STORES,
    *_GRAPH,
    *_LATER,
    *_WAITS,
    *_PAGE,
    *_RECORDED,
    *_LIMITS,
    *_RERUNS,
    *_STREAMS,
    *_CACHE,
    *_BRANCHES,
    *_CHOICES,
]
