"""The commands that rendering writes are commands that the agent understands, with the values that were meant."""

from __future__ import annotations

import shlex

import pytest

from nodeattest_authenticator.commands.cli import parser
from nodeattest_authenticator.commands.cli_args import provider_settings
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import RenderOptions
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.payload import (
    ADOPT_SCRIPT,
    MARK,
    adopt_files,
    agent_join_command,
)
from nodeattest_providers.identifiers import ProviderName

PLAN = RenderOptions(
    provider=ProviderName("composite"),
    settings={"tpm": {"tcti": "swtpm:host=127.0.0.1,port=7"}, "name": "it's", "number": 7},
    provider_id_command="dmi 'product uuid'",
)


@pytest.mark.parametrize("file_format", ["cloud-config", "ignition"])
@pytest.mark.parametrize("may_init", [True, False])
def test_the_agent_understands_the_rendered_join(file_format: str, may_init: bool) -> None:
    command = agent_join_command(PLAN, file_format=file_format, may_init=may_init)
    assert command.endswith(f" || exit 1 {MARK}")
    words = shlex.split(command, comments=True)[:-3]
    options = parser().parse_args(words[words.index("join") :])
    assert options.kubeadm_config in {"/run/kubeadm/kubeadm-join-config.yaml", "/etc/kubeadm.yml"}
    assert options.provider == "composite"
    assert options.provider_id_command == PLAN.provider_id_command
    assert provider_settings(options) == dict(PLAN.settings)


def test_the_agent_understands_the_rendered_adoption() -> None:
    script = next(str(file["content"]) for file in adopt_files(PLAN) if file["path"] == ADOPT_SCRIPT)
    line = next(line for line in script.splitlines() if line.startswith(PLAN.program))
    options = parser().parse_args(shlex.split(line)[1:])
    assert (options.command, options.provider) == ("adopt", "composite")
    assert options.provider_id_command == PLAN.provider_id_command
    assert provider_settings(options) == dict(PLAN.settings)
