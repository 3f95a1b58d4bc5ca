"""What a step's results mean for its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_engine.engine.messages import CoreOutput
from core_engine.scheduler.request import RequestState, RequestStatus
from core_engine.scheduler.step_in_flight import StepInFlight, rows_of_tokens
from core_engine.scheduler.stops import Stop, append_tokens, slice_logprobs

if TYPE_CHECKING:
    from core_engine.scheduler.columns import RequestColumns
    from core_engine.worker.output import ModelRunnerOutput

__all__ = ["take_results"]


def take_results(
    record: StepInFlight, output: ModelRunnerOutput, columns: RequestColumns
) -> tuple[list[CoreOutput], list[tuple[RequestState, Stop]]]:
    """Append the sampled ids to their requests; returns what each gained, and who ends with it and why.

    Rows of requests that have ended since are dropped. Rows of preempted ones count: their tokens
    were sampled while their blocks were still theirs.
    """
    outputs: list[CoreOutput] = []
    ended: list[tuple[RequestState, Stop]] = []
    prompt_logprobs = dict(output.prompt_logprobs)
    sampled = output.sampled_token_ids
    all_chosen = not len(sampled.values) or sampled.values[sampled.values.argmin()] >= 0
    plain = all_chosen and output.logprobs is None and not prompt_logprobs
    finished = RequestStatus.FINISHED
    stop_row = 0
    for request, new_ids in zip(record.sampling_requests, rows_of_tokens(sampled), strict=True):
        num_new = len(new_ids)
        start_row, stop_row = stop_row, stop_row + num_new
        if request.status is finished:
            prompt_logprobs.pop(request.request_id, None)
            continue
        tokens = request.tokens
        if (
            plain
            and num_new == 1
            and new_ids[0] not in request.stop_ids
            and len(tokens) + 1 < request.max_total_tokens
        ):
            # What nearly every row of nearly every step comes to.
            tokens.append(new_ids[0])
            outputs.append(
                CoreOutput(
                    request_id=request.request_id,
                    new_token_ids=new_ids,
                    num_cached_tokens=request.num_cached_tokens,
                )
            )
            continue
        columns.num_tokens[request.slot] += num_new - 1  # one was counted when the step was scheduled
        stop = append_tokens(request, new_ids)
        if stop is not None:
            ended.append((request, stop))
            new_ids = new_ids[: stop.num_kept]
        logprobs, num_logprobs = None, request.request.params.logprobs
        if num_logprobs is not None and output.logprobs is not None:
            logprobs = slice_logprobs(output.logprobs, start_row, start_row + len(new_ids), num_logprobs)
        outputs.append(
            CoreOutput(
                request_id=request.request_id,
                new_token_ids=new_ids,
                finish_reason=stop.finish_reason if stop else None,
                stop_reason=stop.stop_reason if stop else None,
                message=stop.message if stop else None,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs.pop(request.request_id, None),
                num_cached_tokens=request.num_cached_tokens,
            )
        )
    for request in record.requests if prompt_logprobs else ():
        # Chunks of prompts that do not sample yet.
        chunk = prompt_logprobs.get(request.request_id)
        if chunk is not None and request.status is not RequestStatus.FINISHED:
            outputs.append(CoreOutput(request_id=request.request_id, prompt_logprobs=chunk))
    return outputs, ended
