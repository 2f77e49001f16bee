"""Chat templates: the messages of a chat become one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stairwell.errors import UserError
from stairwell.files import read_small_file
from stairwell.serve.limits import RequestError


class ChatTurn(NamedTuple):
    role: str
    text: str


class ChatTemplate:
    """The plain template: the texts of all messages, separated by newlines. It ignores the roles, which mean nothing to
    a model that was not trained on chats, and adds no characters that its vocabulary may lack."""

    source: str | None = None
    """The Jinja template; None for the plain template."""

    def __call__(self, messages: Sequence[ChatTurn]) -> str:
        return "\n".join(message.text for message in messages)


class JinjaTemplate(ChatTemplate):
    """A Jinja template with the variables of Hugging Face's chat templates: `messages`, each with `role` and `content`,
    and `add_generation_prompt`, which is true. The sandbox keeps messages from calling anything."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = reject
        self.source, self.template = source, environment.from_string(source)

    def __call__(self, messages: Sequence[ChatTurn]) -> str:
        values = [{"role": message.role, "content": message.text} for message in messages]
        try:
            return self.template.render(messages=values, add_generation_prompt=True)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise RequestError(400, f"the chat template cannot use these messages: {error}") from None


def reject(message: str) -> NoReturn:
    """Raise an error. Templates call this for messages that they do not support."""
    raise TemplateError(message)


def read_chat_template(path: Path | None) -> ChatTemplate:
    """Return the template in a file, or the plain one."""
    if path is None:
        return ChatTemplate()
    try:
        return JinjaTemplate(read_small_file(path).decode("utf-8"))
    except OSError as error:
        raise UserError(f"--chat-template: cannot read {path}: {error.strerror}") from None
    except (UnicodeError, TemplateError) as error:
        raise UserError(f"--chat-template: {path} is not a Jinja template: {error}") from None
