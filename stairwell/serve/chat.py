"""`POST /v1/chat/completions`: the chat template makes a prompt of the messages, and the rest is a completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stairwell.serve.completions import Completion, find_start, finish_reason, respond, tokens_of
from stairwell.serve.openapi import ChatChoice, ChatLogprobs, TokenLogprob, TokenLogprobs
from stairwell.serve.requests import ChatRequest, encode_messages
from stairwell.serve.scheduler import Output, TokenOutput
from stairwell.serve.service import read_request, service_of


async def chat(request: Request) -> Response:
    service = service_of(request)
    body = await read_request(request, service.models.chat)
    template = service.chat_template
    prompts = [await service.parse(lambda: encode_messages(body, template, service.vocabulary, service.limits))]
    return await respond(request, ChatCompletion(service, body, prompts, await find_start(request, body, prompts)))


class ChatCompletion(Completion[ChatRequest]):
    """A chat completion in progress."""

    id_prefix, object, object_of_part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, *arguments: Any) -> None:
        self.started: set[int] = set()  # sequences whose first part has been sent
        super().__init__(*arguments)

    def _choice(self, index: int, outputs: list[Output]) -> Mapping[str, Any]:
        choice: ChatChoice = {
            "index": index,
            "message": {"role": "assistant", "content": "".join(output.text for output in outputs), "refusal": None},
            "logprobs": self._chat_logprobs(outputs),
            "finish_reason": finish_reason(outputs),
        }
        return choice

    def _part(self, index: int, outputs: list[Output]) -> Mapping[str, Any]:
        first = index not in self.started
        self.started.add(index)
        text = "".join(output.text for output in outputs)
        delta = {"role": "assistant", "content": text} if first else {"content": text} if text else {}
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._chat_logprobs(outputs),
            "finish_reason": finish_reason(outputs),
        }

    def _chat_logprobs(self, outputs: Sequence[Output]) -> ChatLogprobs | None:
        if self.body.alternatives is None:
            return None
        return {"content": [self._token_logprobs(token) for token in tokens_of(outputs)], "refusal": None}

    def _token_logprobs(self, token: TokenOutput) -> TokenLogprobs:
        # `top` has the token itself too.
        alternatives = sorted(token.top_logprobs, key=lambda each: each[1], reverse=True)[: self.body.alternatives]
        return {
            **self._token_logprob(token.id, token.logprob or 0.0),
            "top_logprobs": [self._token_logprob(*alternative) for alternative in alternatives],
        }

    def _token_logprob(self, id: int, logprob: float) -> TokenLogprob:
        data = self.service.vocabulary.token_bytes(id)
        text = self.service.token_text(id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode() if data is None else data)}
