"""Calls the functions for groups and roles against a master that has them.

Prints, as its last line, which were called.
"""

import json
import sys

from determined.common import api
from determined.common.api import authentication, bindings, errors
from made import CALLED, count_calls, refused

EDITOR = 5


def new_user(admin: api.Session, name: str) -> int:
    user = bindings.v1User(username=name, active=True, admin=False)
    made = bindings.post_PostUser(
        admin, body=bindings.v1PostUserRequest(user=user, password="Secret12345", isHashed=False)
    ).user
    assert made and made.id
    return made.id


def groups(admin: api.Session, ada: int, bob: int) -> int:
    group = bindings.post_CreateGroup(admin, body=bindings.v1CreateGroupRequest(name="team", addUsers=[ada])).group
    assert group.groupId

    def members(number: int) -> list[str]:
        found = bindings.get_GetGroup(admin, groupId=number).group
        return sorted(user.username for user in found.users or [])

    assert members(group.groupId) == ["ada"]
    change = bindings.v1UpdateGroupRequest(groupId=group.groupId, name="crew", addUsers=[bob], removeUsers=[ada])
    bindings.put_UpdateGroup(admin, body=change, groupId=group.groupId)
    assert members(group.groupId) == ["bob"]
    several = bindings.v1AssignMultipleGroupsRequest(addGroups=[group.groupId], removeGroups=[], userIds=[ada])
    bindings.patch_AssignMultipleGroups(admin, body=several)
    assert members(group.groupId) == ["ada", "bob"]
    [found] = bindings.post_GetGroups(admin, body=bindings.v1GetGroupsRequest(limit=10, name="crew")).groups or []
    assert (found.group.groupId, found.numMembers) == (group.groupId, 2)
    other = bindings.post_CreateGroup(admin, body=bindings.v1CreateGroupRequest(name="gone")).group.groupId
    assert other
    bindings.delete_DeleteGroup(admin, groupId=other)
    refused(errors.NotFoundException, bindings.get_GetGroup, admin, groupId=other)
    return group.groupId


def roles(admin: api.Session, session: api.Session, ada: int, group: int) -> None:
    listed = bindings.post_ListRoles(admin, body=bindings.v1ListRolesRequest(limit=50)).roles
    assert "Editor" in [role.name for role in listed]
    [named] = bindings.post_GetRolesByID(admin, body=bindings.v1GetRolesByIDRequest(roleIds=[EDITOR])).roles or []
    assert named.role and named.role.name == "Editor" and named.role.permissions
    workspace = bindings.post_PostWorkspace(admin, body=bindings.v1PostWorkspaceRequest(name="lab")).workspace.id
    scope = bindings.v1SearchRolesAssignableToScopeRequest(limit=50, workspaceId=workspace)
    assignable = [role.name for role in bindings.post_SearchRolesAssignableToScope(admin, body=scope).roles or []]
    assert "Editor" in assignable and "WorkspaceCreator" not in assignable
    given = bindings.v1RoleAssignment(role=bindings.v1Role(roleId=EDITOR), scopeWorkspaceId=workspace)
    to_user = bindings.v1UserRoleAssignment(roleAssignment=given, userId=ada)
    to_group = bindings.v1GroupRoleAssignment(roleAssignment=given, groupId=group)
    body = bindings.v1AssignRolesRequest(userRoleAssignments=[to_user], groupRoleAssignments=[to_group])
    refused(errors.NotFoundException, bindings.post_AssignRoles, session, body=body)
    bindings.post_AssignRoles(admin, body=body)
    of_user = bindings.get_GetRolesAssignedToUser(admin, userId=ada).roles
    of_group = bindings.get_GetRolesAssignedToGroup(admin, groupId=group).roles
    assert [each.role.name for each in of_user if each.role] == ["Editor"]
    assert [role.name for role in of_group] == ["Editor"]
    there = bindings.get_GetGroupsAndUsersAssignedToWorkspace(admin, workspaceId=workspace)
    assert ada in [user.id for user in there.usersAssignedDirectly], there
    assert [each.groupId for each in there.groups] == [group]
    summary = bindings.get_GetPermissionsSummary(session)
    assert [role.name for role in summary.roles] == ["Editor"]
    taken = bindings.v1RemoveAssignmentsRequest(userRoleAssignments=[to_user], groupRoleAssignments=[to_group])
    bindings.post_RemoveAssignments(admin, body=taken)
    assert bindings.get_GetRolesAssignedToUser(admin, userId=ada).roles == []
    assert bindings.get_GetRolesAssignedToGroup(admin, groupId=group).roles == []


def main(address: str) -> None:
    admin = authentication.login(address, "admin", "")
    count_calls()
    ada, bob = (new_user(admin, name) for name in ("ada", "bob"))
    session = authentication.login(address, "ada", "Secret12345")
    roles(admin, session, ada, groups(admin, ada, bob))
    print(json.dumps({"called": sorted(CALLED)}))


if __name__ == "__main__":
    main(sys.argv[1])
