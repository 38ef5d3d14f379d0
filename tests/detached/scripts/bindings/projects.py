"""Projects, policies for their configurations, and webhooks."""

import json
import typing

from determined.common import api
from determined.common.api import bindings, errors
from made import Trials, refused


def projects(session: api.Session, admin: api.Session, made: Trials) -> None:
    note = bindings.v1Note(name="first", contents="words")
    assert bindings.post_AddProjectNote(session, body=note, projectId=made.project).notes[0].contents == "words"
    whole = bindings.v1PutProjectNotesRequest(notes=[note, note], projectId=made.project)
    assert len(bindings.put_PutProjectNotes(session, body=whole, projectId=made.project).notes) == 2
    found = bindings.get_GetProject(session, id=made.project).project
    assert [each.name for each in found.notes] == ["first", "first"]
    assert bindings.get_GetProjectByKey(session, key=found.key).project.id == made.project
    refused(errors.NotFoundException, bindings.get_GetProjectByKey, session, key="NONE")
    kinds = {"activityType": bindings.v1ActivityType.GET, "entityType": bindings.v1EntityType.PROJECT}
    bindings.post_PostUserActivity(session, body=bindings.v1PostUserActivityRequest(entityId=made.project, **kinds))
    seen = bindings.get_GetProjectsByUserActivity(session, limit=5).projects or []
    assert [project.id for project in seen] == [made.project]
    bindings.post_PinWorkspace(session, id=made.workspace)
    assert [each.id for each in bindings.get_GetWorkspaces(session, pinned=True).workspaces] == [made.workspace]
    assert not bindings.get_GetWorkspace(admin, id=made.workspace).workspace.pinned
    bindings.post_UnpinWorkspace(session, id=made.workspace)
    assert not bindings.get_GetWorkspace(session, id=made.workspace).workspace.pinned
    other = bindings.post_PostWorkspace(session, body=bindings.v1PostWorkspaceRequest(name="away")).workspace.id
    move = bindings.v1MoveProjectRequest(destinationWorkspaceId=other, projectId=made.project)
    bindings.post_MoveProject(session, body=move, projectId=made.project)
    assert bindings.get_GetProject(session, id=made.project).project.workspaceId == other
    back = bindings.v1MoveProjectRequest(destinationWorkspaceId=made.workspace, projectId=made.project)
    bindings.post_MoveProject(session, body=back, projectId=made.project)


def config_policies(session: api.Session, admin: api.Session, made: Trials) -> None:
    kind = "EXPERIMENT"
    text = "invariant_config: {resources: {weight: 3}, environment: {environment_variables: [HF_TOKEN=hush]}}\n"
    everywhere = bindings.v1PutGlobalConfigPoliciesRequest(configPolicies=text, workloadType=kind)
    refused(
        errors.ForbiddenException, bindings.put_PutGlobalConfigPolicies, session, body=everywhere, workloadType=kind
    )
    bindings.put_PutGlobalConfigPolicies(admin, body=everywhere, workloadType=kind)
    found = bindings.get_GetGlobalConfigPolicies(session, workloadType=kind).configPolicies
    assert found and found["invariant_config"]["resources"] == {"weight": 3} and "hush" not in str(found)
    limits = (
        "invariant_config: {resources: {weight: 9}}\nconstraints: {resources: {max_slots: 2}, priority_limit: 10}\n"
    )
    here = bindings.v1PutWorkspaceConfigPoliciesRequest(
        configPolicies=limits, workloadType=kind, workspaceId=made.workspace
    )
    bindings.put_PutWorkspaceConfigPolicies(session, body=here, workloadType=kind, workspaceId=made.workspace)
    found = bindings.get_GetWorkspaceConfigPolicies(
        session, workloadType=kind, workspaceId=made.workspace
    ).configPolicies
    assert found and found["constraints"] == {"resources": {"max_slots": 2}, "priority_limit": 10}

    def create(project: int, **resources: int) -> dict[str, typing.Any]:
        config = {
            "name": "ruled",
            "entrypoint": "true",
            "searcher": {"name": "single", "metric": "x"},
            "resources": resources,
            "checkpoint_storage": {"type": "directory", "container_path": "/tmp/none"},
        }
        request = bindings.v1CreateExperimentRequest(config=json.dumps(config), activate=False, projectId=project)
        experiment = bindings.post_CreateExperiment(session, body=request).experiment
        bindings.post_KillExperiment(session, id=experiment.id)
        made_of: dict[str, typing.Any] = experiment.config["resources"]
        return made_of

    ruled = create(made.project, weight=1)
    assert (ruled["weight"], ruled["max_slots"]) == (3, 2)
    assert create(1, slots_per_trial=3)["weight"] == 3
    assert "exceed the limit" in refused(errors.APIException, create, made.project, slots_per_trial=3)
    assert "exceeds the limit" in refused(errors.APIException, create, made.project, priority=5)
    bindings.delete_DeleteWorkspaceConfigPolicies(session, workloadType=kind, workspaceId=made.workspace)
    bindings.delete_DeleteGlobalConfigPolicies(admin, workloadType=kind)
    assert bindings.get_GetGlobalConfigPolicies(session, workloadType=kind).configPolicies == {}
    assert create(made.project, slots_per_trial=3)["weight"] == 1
    wrong = bindings.v1PutGlobalConfigPoliciesRequest(configPolicies="constraints: {x: 1}", workloadType=kind)
    assert "no constraint" in refused(
        errors.APIException, bindings.put_PutGlobalConfigPolicies, admin, body=wrong, workloadType=kind
    )


def webhooks(session: api.Session, admin: api.Session, made: Trials) -> None:
    trigger = bindings.v1Trigger(
        triggerType=bindings.v1TriggerType.EXPERIMENT_STATE_CHANGE, condition={"state": "COMPLETED"}
    )
    hook = bindings.v1Webhook(
        name="hook",
        url="https://example.org/hook",
        webhookType=bindings.v1WebhookType.SLACK,
        mode=bindings.v1WebhookMode.WORKSPACE,
        triggers=[trigger],
    )
    refused(errors.ForbiddenException, bindings.post_PostWebhook, session, body=hook)
    number = bindings.post_PostWebhook(admin, body=hook).webhook.id
    assert number
    bindings.patch_PatchWebhook(admin, body=bindings.v1PatchWebhook(url="http://127.0.0.1:1/hook"), id=number)
    [found] = bindings.get_GetWebhooks(admin).webhooks
    assert (
        found.url == "http://127.0.0.1:1/hook"
        and found.triggers
        and found.triggers[0].condition == {"state": "COMPLETED"}
    )
    # Others see that there is one, and where; not the rest of its address, which often is a key.
    assert [each.url for each in bindings.get_GetWebhooks(session).webhooks] == ["http://127.0.0.1/"]
    assert "private network" in refused(errors.APIException, bindings.post_TestWebhook, admin, id=number)
    data = bindings.v1CustomWebhookEventData(title="words")
    event = bindings.v1PostWebhookEventDataRequest(experimentId=made.experiments[0], data=data)
    bindings.post_PostWebhookEventData(session, body=event)
    bindings.delete_DeleteWebhook(admin, id=number)
    assert bindings.get_GetWebhooks(admin).webhooks == []


def workspaces(session: api.Session, admin: api.Session) -> None:
    workspace = bindings.post_PostWorkspace(session, body=bindings.v1PostWorkspaceRequest(name="room")).workspace.id
    storage = {"type": "directory", "container_path": "/tmp/none"}
    owner = bindings.v1AgentUserGroup(agentUid=1200, agentUser="kim", agentGid=1300, agentGroup="crew")
    bindings.patch_PatchWorkspace(
        session, body=bindings.v1PatchWorkspace(name="hall", checkpointStorageConfig=storage), id=workspace
    )
    as_whom = bindings.v1PatchWorkspace(agentUserGroup=owner)
    refused(errors.ForbiddenException, bindings.patch_PatchWorkspace, session, body=as_whom, id=workspace)
    bindings.patch_PatchWorkspace(admin, body=as_whom, id=workspace)
    found = bindings.get_GetWorkspace(session, id=workspace).workspace
    assert found.name == "hall" and found.agentUserGroup and found.agentUserGroup.agentGid == 1300
    assert found.checkpointStorageConfig and found.checkpointStorageConfig["container_path"] == "/tmp/none"
    body = bindings.v1PostProjectRequest(name="one", workspaceId=workspace)
    project = bindings.post_PostProject(session, body=body, workspaceId=workspace).project.id
    bindings.patch_PatchProject(session, body=bindings.v1PatchProject(name="uno", description="words"), id=project)
    [listed] = bindings.get_GetWorkspaceProjects(session, id=workspace).projects
    assert (listed.id, listed.name, listed.description) == (project, "uno", "words")
    assert (
        bindings.patch_PatchProject(session, body=bindings.v1PatchProject(key="uno1"), id=project).project.key == "UNO1"
    )
    assert bindings.get_GetProjectByKey(session, key="UNO1").project.id == project
    twin = bindings.v1PostProjectRequest(name="due", workspaceId=workspace, key="UNO1")
    refused(errors.APIException, bindings.post_PostProject, session, body=twin, workspaceId=workspace)
    wrong = bindings.v1PatchProject(key="too long")
    refused(errors.APIException, bindings.patch_PatchProject, session, body=wrong, id=project)
    bindings.post_ArchiveProject(session, id=project)
    assert bindings.get_GetProject(session, id=project).project.archived
    refused(
        errors.APIException, bindings.patch_PatchProject, session, body=bindings.v1PatchProject(name="x"), id=project
    )
    bindings.post_UnarchiveProject(session, id=project)
    bindings.post_ArchiveWorkspace(session, id=workspace)
    assert bindings.get_GetWorkspace(session, id=workspace).workspace.archived
    assert bindings.get_GetProject(session, id=project).project.archived
    bindings.post_UnarchiveWorkspace(session, id=workspace)
    assert not bindings.get_GetWorkspace(session, id=workspace).workspace.archived
    assert bindings.delete_DeleteProject(session, id=project).completed
    refused(errors.NotFoundException, bindings.get_GetProject, session, id=project)
    bindings.delete_DeleteWorkspace(session, id=workspace)
    refused(errors.NotFoundException, bindings.get_GetWorkspace, session, id=workspace)
    refused(errors.ForbiddenException, bindings.delete_DeleteWorkspace, session, id=1)


def templates(session: api.Session) -> None:
    config = {"description": "words", "resources": {"slots_per_trial": 2}}
    new = bindings.v1Template(name="base", config=config, workspaceId=1)
    assert bindings.post_PostTemplate(session, body=new, template_name="base").template.name == "base"
    refused(errors.APIException, bindings.post_PostTemplate, session, body=new, template_name="base")

    def shown(name: str) -> dict[str, typing.Any]:
        return bindings.get_GetTemplate(session, templateName=name).template.config

    assert shown("base") == config
    other = bindings.v1Template(name="base", config={"description": "other"}, workspaceId=1)
    bindings.put_PutTemplate(session, body=other, template_name="base")
    assert shown("base") == {"description": "other"}
    bindings.patch_PatchTemplateConfig(session, body=config, templateName="base")
    assert shown("base") == config
    rename = bindings.v1PatchTemplateNameRequest(oldName="base", newName="ground")
    assert bindings.patch_PatchTemplateName(session, body=rename).template.name == "ground"
    assert [each.name for each in bindings.get_GetTemplates(session).templates] == ["ground"]
    refused(errors.NotFoundException, bindings.get_GetTemplate, session, templateName="base")
    bindings.delete_DeleteTemplate(session, templateName="ground")
    assert bindings.get_GetTemplates(session).templates == []
