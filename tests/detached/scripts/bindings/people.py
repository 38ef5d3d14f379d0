"""Users, their settings and tokens, and what they are told."""

from determined.common import api
from determined.common.api import authentication, bindings, errors
from made import refused


def settings(session: api.Session, admin: api.Session) -> None:
    setting = bindings.v1UserWebSetting(key="theme", value="dark", storagePath="shell")
    bindings.post_PostUserSetting(session, body=bindings.v1PostUserSettingRequest(settings=[setting]))
    assert [each.to_json() for each in bindings.get_GetUserSetting(session).settings] == [setting.to_json()]
    assert bindings.get_GetUserSetting(admin).settings == []
    bindings.post_ResetUserSetting(session)
    assert bindings.get_GetUserSetting(session).settings == []


def messages(session: api.Session, admin: api.Session) -> None:
    body = bindings.v1SetClusterMessageRequest(
        message="closed on Friday", startTime="2026-01-01T00:00:00Z", duration="5200w"
    )
    refused(errors.ForbiddenException, bindings.put_SetClusterMessage, session, body=body)
    bindings.put_SetClusterMessage(admin, body=body)
    found = bindings.get_GetClusterMessage(admin).clusterMessage
    assert found and found.message == "closed on Friday" and found.endTime
    shown = bindings.get_GetMaster(session).clusterMessage
    assert shown and shown.message == found.message
    bindings.delete_DeleteClusterMessage(admin)
    assert bindings.get_GetClusterMessage(admin).clusterMessage is None
    past = bindings.v1SetClusterMessageRequest(
        message="x", startTime="2026-01-01T00:00:00Z", endTime="2026-01-02T00:00:00Z"
    )
    refused(errors.APIException, bindings.put_SetClusterMessage, admin, body=past)


def tokens(session: api.Session, admin: api.Session, address: str) -> None:
    user = bindings.get_GetMe(session).user
    administrator = bindings.get_GetMe(admin).user
    assert user.id and administrator.id
    body = bindings.v1PostAccessTokenRequest(userId=user.id, lifespan="48h", description="for a job")
    made = bindings.post_PostAccessToken(session, body=body)
    assert made.token and made.tokenId
    program = api.Session(address, user.username, made.token, None)
    assert bindings.get_GetMe(program).user.username == user.username
    [found] = bindings.get_GetAccessTokens(session).tokenInfo
    assert found.id == made.tokenId and found.description == "for a job" and not found.revoked and found.expiry
    assert found.tokenType == bindings.v1TokenType.ACCESS_TOKEN
    others = bindings.v1PostAccessTokenRequest(userId=administrator.id)
    refused(errors.ForbiddenException, bindings.post_PostAccessToken, session, body=others)
    hidden = bindings.post_PostAccessToken(
        admin, body=bindings.v1PostAccessTokenRequest(userId=administrator.id, lifespan="-1")
    )
    assert hidden.tokenId
    change = bindings.v1PatchAccessTokenRequest(tokenId=hidden.tokenId, setRevoked=True)
    refused(errors.NotFoundException, bindings.patch_PatchAccessToken, session, body=change, tokenId=hidden.tokenId)
    edit = bindings.v1PatchAccessTokenRequest(tokenId=made.tokenId, description="better", setRevoked=False)
    changed = bindings.patch_PatchAccessToken(session, body=edit, tokenId=made.tokenId).tokenInfo
    assert changed and changed.description == "better"
    revoke = bindings.v1PatchAccessTokenRequest(tokenId=made.tokenId, setRevoked=True)
    bindings.patch_PatchAccessToken(session, body=revoke, tokenId=made.tokenId)
    refused(errors.UnauthenticatedException, bindings.get_GetMe, program)
    assert bindings.get_GetAccessTokens(session).tokenInfo == []
    [dead] = bindings.get_GetAccessTokens(session, showInactive=True).tokenInfo
    assert dead.revoked


def users(session: api.Session, admin: api.Session, address: str) -> None:
    new = bindings.v1User(username="eve", active=True, admin=False)
    user = bindings.post_PostUser(
        admin, body=bindings.v1PostUserRequest(user=new, password="Secret12345", isHashed=False)
    ).user
    assert user and user.id
    body = bindings.v1PatchUsersRequest(activate=False, userIds=[user.id, 999])
    refused(errors.ForbiddenException, bindings.patch_PatchUsers, session, body=body)
    results = bindings.patch_PatchUsers(admin, body=body).results
    assert [(each.id, bool(each.error)) for each in results] == [(user.id, False), (999, True)]
    assert not bindings.get_GetUser(session, userId=user.id).user.active
    by_name = bindings.v1PatchUsersRequest(activate=True, userIds=[], filters=bindings.v1UserFilters(name="EVE"))
    assert [each.id for each in bindings.patch_PatchUsers(admin, body=by_name).results] == [user.id]
    assert bindings.get_GetUser(session, userId=user.id).user.active
    refused(errors.ForbiddenException, bindings.post_SetUserPassword, session, body="Another12345", userId=user.id)
    bindings.post_SetUserPassword(admin, body="Another12345", userId=user.id)
    assert authentication.login(address, "eve", "Another12345").username == "eve"
    assert bindings.get_GetUserByUsername(session, username="eve").user.id == user.id
    change = bindings.v1PatchUser(displayName="Eve", admin=True)
    refused(errors.ForbiddenException, bindings.patch_PatchUser, session, body=change, userId=user.id)
    bindings.patch_PatchUser(admin, body=change, userId=user.id)
    [found] = bindings.get_GetUsers(session, name="eve").users or []
    assert (found.displayName, found.admin) == ("Eve", True)
    login = bindings.v1LoginRequest(username="eve", password="Another12345", isHashed=False)
    answer = bindings.post_Login(session, body=login)
    own = api.Session(address, "eve", answer.token, None)
    assert bindings.get_CurrentUser(own).user.username == "eve"
    bindings.post_Logout(own)
    refused(errors.UnauthenticatedException, bindings.get_CurrentUser, own)
