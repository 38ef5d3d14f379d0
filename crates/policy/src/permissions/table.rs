//! The roles and permissions of Determined 0.38.1, with its names and numbers.

macro_rules! permissions {
    ($($name:ident $number:literal $type:literal $text:literal $global:literal;)*) => {
        /// Something that a role lets its holders do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "Determined's own names; text() says it in words")]
        pub enum Permission {
            $($name,)*
        }

        /// All permissions.
        pub const PERMISSIONS: &[Permission] = &[$(Permission::$name,)*];

        impl Permission {
            /// Determined's number.
            pub fn number(self) -> i64 {
                match self { $(Permission::$name => $number,)* }
            }

            /// As the API spells it.
            pub fn type_name(self) -> &'static str {
                match self { $(Permission::$name => concat!("PERMISSION_TYPE_", $type),)* }
            }

            /// For people.
            pub fn text(self) -> &'static str {
                match self { $(Permission::$name => $text,)* }
            }

            /// Whether it is about the cluster alone, and means nothing in a single workspace.
            pub fn is_global_only(self) -> bool {
                match self { $(Permission::$name => $global,)* }
            }
        }
    };
}

permissions! {
    CreateExperiment 2001 "CREATE_EXPERIMENT" "create experiment" false;
    ViewExperimentArtifacts 2002 "VIEW_EXPERIMENT_ARTIFACTS" "view experiment artifacts" false;
    ViewExperimentMetadata 2003 "VIEW_EXPERIMENT_METADATA" "view experiment metadata" false;
    UpdateExperiment 2004 "UPDATE_EXPERIMENT" "update experiment" false;
    UpdateExperimentMetadata 2005 "UPDATE_EXPERIMENT_METADATA" "update experiment metadata" false;
    DeleteExperiment 2006 "DELETE_EXPERIMENT" "delete experiment" false;
    CreateNsc 3001 "CREATE_NSC" "create notebooks/shells/commands" false;
    ViewNsc 3002 "VIEW_NSC" "view notebooks/shells/commands" false;
    UpdateNsc 3003 "UPDATE_NSC" "update notebooks/shells/commands" false;
    ViewWorkspace 4002 "VIEW_WORKSPACE" "view workspace" false;
    UpdateWorkspace 4003 "UPDATE_WORKSPACE" "update workspace" false;
    DeleteWorkspace 4004 "DELETE_WORKSPACE" "delete workspace" false;
    SetWorkspaceAgentUserGroup 4005 "SET_WORKSPACE_AGENT_USER_GROUP" "set agent user group on workspace" false;
    SetWorkspaceCheckpointStorageConfig 4006 "SET_WORKSPACE_CHECKPOINT_STORAGE_CONFIG" "set checkpoint storage config on workspace" false;
    SetWorkspaceDefaultResourcePool 4007 "SET_WORKSPACE_DEFAULT_RESOURCE_POOL" "set default resource pool on workspace" false;
    CreateProject 5001 "CREATE_PROJECT" "create project" false;
    ViewProject 5002 "VIEW_PROJECT" "view project" false;
    UpdateProject 5003 "UPDATE_PROJECT" "update project" false;
    DeleteProject 5004 "DELETE_PROJECT" "delete project" false;
    AssignRoles 6002 "ASSIGN_ROLES" "assign roles" false;
    ViewModelRegistry 7001 "VIEW_MODEL_REGISTRY" "view model registry" false;
    EditModelRegistry 7002 "EDIT_MODEL_REGISTRY" "edit model registry" false;
    CreateModelRegistry 7003 "CREATE_MODEL_REGISTRY" "create model registry" false;
    DeleteModelRegistry 7004 "DELETE_MODEL_REGISTRY" "delete model registry" false;
    DeleteModelVersion 7005 "DELETE_MODEL_VERSION" "delete model version" false;
    DeleteOtherUserModelRegistry 7006 "DELETE_OTHER_USER_MODEL_REGISTRY" "delete other user model registry" false;
    DeleteOtherUserModelVersion 7007 "DELETE_OTHER_USER_MODEL_VERSION" "delete other user model version" false;
    ViewMasterLogs 8001 "VIEW_MASTER_LOGS" "view master logs" true;
    ViewClusterUsage 8002 "VIEW_CLUSTER_USAGE" "view detailed cluster usage" true;
    UpdateAgents 8003 "UPDATE_AGENTS" "update agents" true;
    ViewSensitiveAgentInfo 8004 "VIEW_SENSITIVE_AGENT_INFO" "view sensitive agent info" true;
    ViewMasterConfig 8005 "VIEW_MASTER_CONFIG" "view master config" true;
    UpdateMasterConfig 8006 "UPDATE_MASTER_CONFIG" "update master config" true;
    ViewExternalJobs 8007 "VIEW_EXTERNAL_JOBS" "view external jobs" true;
    ControlStrictJobQueue 8101 "CONTROL_STRICT_JOB_QUEUE" "control strict job queue" true;
    ViewTemplates 9001 "VIEW_TEMPLATES" "view templates" false;
    UpdateTemplates 9002 "UPDATE_TEMPLATES" "update templates" false;
    CreateTemplates 9003 "CREATE_TEMPLATES" "create templates" false;
    DeleteTemplates 9004 "DELETE_TEMPLATES" "delete templates" false;
    ModifyRpWorkspaceBindings 10001 "MODIFY_RP_WORKSPACE_BINDINGS" "modify rp workspace bindings" true;
    SetWorkspaceNamespaceBindings 11001 "SET_WORKSPACE_NAMESPACE_BINDINGS" "set workspace-namespace bindings" true;
    SetResourceQuotas 11002 "SET_RESOURCE_QUOTAS" "set resource quotas" true;
    ViewResourceQuotas 11003 "VIEW_RESOURCE_QUOTAS" "view resource quotas" false;
    ModifyGlobalConfigPolicies 11004 "MODIFY_GLOBAL_CONFIG_POLICIES" "modify global config policies" true;
    ModifyWorkspaceConfigPolicies 11005 "MODIFY_WORKSPACE_CONFIG_POLICIES" "modify workspace config policies" false;
    ViewGlobalConfigPolicies 11006 "VIEW_GLOBAL_CONFIG_POLICIES" "view global config policies" false;
    ViewWorkspaceConfigPolicies 11007 "VIEW_WORKSPACE_CONFIG_POLICIES" "view workspace config policies" false;
    AdministrateToken 12001 "ADMINISTRATE_TOKEN" "administrate access token" true;
    UpdateToken 12002 "UPDATE_TOKEN" "update own access token" true;
    CreateToken 12003 "CREATE_TOKEN" "create access token" true;
    CreateOtherToken 12004 "CREATE_OTHER_TOKEN" "create other access token" true;
    ViewOtherToken 12005 "VIEW_OTHER_TOKEN" "view other access token" true;
    ViewToken 12006 "VIEW_TOKEN" "view own access token" true;
    AdministrateUser 91001 "ADMINISTRATE_USER" "administrate user" true;
    AdministrateOauth 91002 "ADMINISTRATE_OAUTH" "manage oauth" true;
    UpdateGroup 93001 "UPDATE_GROUP" "update group" true;
    CreateWorkspace 94001 "CREATE_WORKSPACE" "create workspace" true;
    UpdateRoles 96001 "UPDATE_ROLES" "update roles" true;
    EditWebhooks 97001 "EDIT_WEBHOOKS" "edit webhooks" false;
    ViewWebhooks 97002 "VIEW_WEBHOOKS" "view webhooks" false;
}

use Permission::*;

const WORKSPACE_ADMIN: &[Permission] = &[
    CreateExperiment,
    ViewExperimentArtifacts,
    ViewExperimentMetadata,
    UpdateExperiment,
    UpdateExperimentMetadata,
    DeleteExperiment,
    CreateNsc,
    ViewNsc,
    UpdateNsc,
    ViewWorkspace,
    UpdateWorkspace,
    DeleteWorkspace,
    SetWorkspaceCheckpointStorageConfig,
    SetWorkspaceDefaultResourcePool,
    CreateProject,
    ViewProject,
    UpdateProject,
    DeleteProject,
    AssignRoles,
    ViewModelRegistry,
    EditModelRegistry,
    CreateModelRegistry,
    DeleteModelRegistry,
    DeleteModelVersion,
    DeleteOtherUserModelRegistry,
    DeleteOtherUserModelVersion,
    ViewTemplates,
    UpdateTemplates,
    CreateTemplates,
    DeleteTemplates,
    ViewResourceQuotas,
    ModifyWorkspaceConfigPolicies,
    ViewGlobalConfigPolicies,
    ViewWorkspaceConfigPolicies,
    EditWebhooks,
    ViewWebhooks,
];

const WORKSPACE_CREATOR: &[Permission] = &[ViewGlobalConfigPolicies, ViewWorkspaceConfigPolicies, CreateWorkspace];

const VIEWER: &[Permission] = &[
    ViewExperimentArtifacts,
    ViewExperimentMetadata,
    ViewNsc,
    ViewWorkspace,
    ViewProject,
    ViewModelRegistry,
    ViewTemplates,
    ViewResourceQuotas,
    ViewGlobalConfigPolicies,
    ViewWorkspaceConfigPolicies,
    ViewWebhooks,
];

const EDITOR: &[Permission] = &[
    CreateExperiment,
    ViewExperimentArtifacts,
    ViewExperimentMetadata,
    UpdateExperiment,
    UpdateExperimentMetadata,
    DeleteExperiment,
    CreateNsc,
    ViewNsc,
    UpdateNsc,
    ViewWorkspace,
    CreateProject,
    ViewProject,
    UpdateProject,
    ViewModelRegistry,
    EditModelRegistry,
    CreateModelRegistry,
    DeleteModelRegistry,
    DeleteModelVersion,
    ViewTemplates,
    UpdateTemplates,
    CreateTemplates,
    DeleteTemplates,
    ViewResourceQuotas,
    ViewGlobalConfigPolicies,
    ViewWorkspaceConfigPolicies,
    EditWebhooks,
    ViewWebhooks,
];

const MODEL_REGISTRY_VIEWER: &[Permission] =
    &[ViewModelRegistry, ViewGlobalConfigPolicies, ViewWorkspaceConfigPolicies];

/// An editor without commands of their own.
const EDITOR_RESTRICTED: &[Permission] = &[
    CreateExperiment,
    ViewExperimentArtifacts,
    ViewExperimentMetadata,
    UpdateExperiment,
    UpdateExperimentMetadata,
    DeleteExperiment,
    ViewNsc,
    ViewWorkspace,
    CreateProject,
    ViewProject,
    UpdateProject,
    ViewModelRegistry,
    EditModelRegistry,
    CreateModelRegistry,
    DeleteModelRegistry,
    DeleteModelVersion,
    ViewTemplates,
    UpdateTemplates,
    CreateTemplates,
    DeleteTemplates,
    ViewResourceQuotas,
    ViewGlobalConfigPolicies,
    ViewWorkspaceConfigPolicies,
    EditWebhooks,
    ViewWebhooks,
];

const GEN_AI_USER: &[Permission] = &[
    CreateExperiment,
    ViewExperimentArtifacts,
    ViewExperimentMetadata,
    UpdateExperiment,
    UpdateExperimentMetadata,
    DeleteExperiment,
    CreateNsc,
    ViewNsc,
    UpdateNsc,
    ViewWorkspace,
    CreateProject,
    ViewProject,
    UpdateProject,
    DeleteProject,
    ViewModelRegistry,
    EditModelRegistry,
    CreateModelRegistry,
    DeleteModelRegistry,
    DeleteModelVersion,
    ViewTemplates,
    UpdateTemplates,
    CreateTemplates,
    DeleteTemplates,
    ViewResourceQuotas,
    ViewGlobalConfigPolicies,
    ViewWorkspaceConfigPolicies,
    CreateWorkspace,
];

/// An editor without projects of their own.
const EDITOR_PROJECT_RESTRICTED: &[Permission] = &[
    CreateExperiment,
    ViewExperimentArtifacts,
    ViewExperimentMetadata,
    UpdateExperiment,
    UpdateExperimentMetadata,
    DeleteExperiment,
    CreateNsc,
    ViewNsc,
    UpdateNsc,
    ViewWorkspace,
    ViewProject,
    ViewModelRegistry,
    EditModelRegistry,
    CreateModelRegistry,
    DeleteModelRegistry,
    DeleteModelVersion,
    ViewTemplates,
    UpdateTemplates,
    CreateTemplates,
    DeleteTemplates,
    ViewResourceQuotas,
    ViewGlobalConfigPolicies,
    ViewWorkspaceConfigPolicies,
    EditWebhooks,
    ViewWebhooks,
];

const TOKEN_CREATOR: &[Permission] = &[UpdateToken, CreateToken, ViewToken];

/// What somebody is in a workspace, or in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "Determined's own names")]
pub enum Role {
    ClusterAdmin,
    WorkspaceAdmin,
    WorkspaceCreator,
    Viewer,
    Editor,
    ModelRegistryViewer,
    EditorRestricted,
    GenAiUser,
    EditorProjectRestricted,
    TokenCreator,
}

/// All roles, in the order of their numbers.
pub const ROLES: &[Role] = &[
    Role::ClusterAdmin,
    Role::WorkspaceAdmin,
    Role::WorkspaceCreator,
    Role::Viewer,
    Role::Editor,
    Role::ModelRegistryViewer,
    Role::EditorRestricted,
    Role::GenAiUser,
    Role::EditorProjectRestricted,
    Role::TokenCreator,
];

impl Role {
    /// Determined's number.
    pub fn number(self) -> i64 {
        match self {
            Role::ClusterAdmin => 1,
            Role::WorkspaceAdmin => 2,
            Role::WorkspaceCreator => 3,
            Role::Viewer => 4,
            Role::Editor => 5,
            Role::ModelRegistryViewer => 6,
            Role::EditorRestricted => 7,
            Role::GenAiUser => 8,
            Role::EditorProjectRestricted => 9,
            Role::TokenCreator => 10,
        }
    }

    /// The role of a number.
    pub fn of_number(number: i64) -> Option<Role> {
        ROLES.iter().copied().find(|role| role.number() == number)
    }

    /// Determined's name.
    pub fn name(self) -> &'static str {
        match self {
            Role::ClusterAdmin => "ClusterAdmin",
            Role::WorkspaceAdmin => "WorkspaceAdmin",
            Role::WorkspaceCreator => "WorkspaceCreator",
            Role::Viewer => "Viewer",
            Role::Editor => "Editor",
            Role::ModelRegistryViewer => "ModelRegistryViewer",
            Role::EditorRestricted => "EditorRestricted",
            Role::GenAiUser => "GenAIUser",
            Role::EditorProjectRestricted => "EditorProjectRestricted",
            Role::TokenCreator => "TokenCreator",
        }
    }

    /// What it lets its holders do.
    pub fn permissions(self) -> &'static [Permission] {
        match self {
            Role::ClusterAdmin => PERMISSIONS,
            Role::WorkspaceAdmin => WORKSPACE_ADMIN,
            Role::WorkspaceCreator => WORKSPACE_CREATOR,
            Role::Viewer => VIEWER,
            Role::Editor => EDITOR,
            Role::ModelRegistryViewer => MODEL_REGISTRY_VIEWER,
            Role::EditorRestricted => EDITOR_RESTRICTED,
            Role::GenAiUser => GEN_AI_USER,
            Role::EditorProjectRestricted => EDITOR_PROJECT_RESTRICTED,
            Role::TokenCreator => TOKEN_CREATOR,
        }
    }

    /// Whether it can be given in a single workspace: nothing of it is about the cluster alone.
    pub fn fits_a_workspace(self) -> bool {
        !self.permissions().iter().any(|permission| permission.is_global_only())
    }
}
