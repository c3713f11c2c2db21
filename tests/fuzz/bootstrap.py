"""Target of rendering: bootstrap configurations that a tenant wrote, as the webhook gets them."""

from __future__ import annotations

import json
from typing import Final

from fuzz.target import Target, require
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import RenderingRefused, RenderOptions
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.payload import DROP_IN, MARK
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import render
from nodeattest_kube.jsontypes import parse_json
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderName

_PLAN: Final = RenderOptions(provider=ProviderName("tpm"), provider_id="metal://7")


def _render(data: bytes) -> bool:
    """Render what is JSON; what was rendered is rendered for good, and the input is as it was."""
    try:
        document = parse_json(data)
    except ValueError:
        return False
    before = json.dumps(document)
    try:
        made = render(document, _PLAN)
    except RenderingRefused as refused:
        require(bool(refused.refusals), "a refusal says something")
        require({each.reason for each in refused.refusals} == {Reason.BOOTSTRAP_CONFIG_REFUSED}, "its own reason")
        return False
    finally:
        require(json.dumps(document) == before, "the input is left alone")
    again = render(made, _PLAN)
    require(again == made, "rendering twice is rendering once")
    written = json.dumps(made)
    require(json.dumps(DROP_IN) in written and MARK in written, "what attests is there")
    return True


TARGETS: Final = (Target("bootstrap-configuration", _render, 8192),)
