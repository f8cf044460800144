package features

import "slices"

// retired are gates of earlier releases whose behaviour is always on today: name → what setting it to
// false would ask for, which cannot be had any more.
var retired = map[string]string{
	"HonorPVReclaimPolicy": "the reclaim policy of a PersistentVolume is always honoured",
}

// foreign are gates of the Kubernetes API server that the well-known external-provisioner accepts because
// it links that code. None has an effect in a sidecar; manifests may carry them.
var foreign = []string{
	"APIResponseCompression",
	"APIServerIdentity",
	"APIServerTracing",
	"APIServingWithRoutine",
	"AggregatedDiscoveryRemoveBetaType",
	"AllowParsingUserUIDFromCertAuth",
	"AllowUnsafeMalformedObjectDeletion",
	"AnonymousAuthConfigurableEndpoints",
	"AuthorizeWithSelectors",
	"BtreeWatchCache",
	"CBORServingAndStorage",
	"ComponentFlagz",
	"ComponentStatusz",
	"ConcurrentWatchObjectDecode",
	"ConsistentListFromCache",
	"ConstrainedImpersonation",
	"CoordinatedLeaderElection",
	"DeclarativeValidation",
	"DeclarativeValidationBeta",
	"DeclarativeValidationTakeover",
	"DetectCacheInconsistency",
	"KMSv1",
	"ListFromCacheSnapshot",
	"ManifestBasedAdmissionControlConfig",
	"MutatingAdmissionPolicy",
	"NativeHistograms",
	"OpenAPIEnums",
	"RemoteRequestHeaderUID",
	"ResilientWatchCacheInitialization",
	"RetryGenerateName",
	"SeparateCacheWatchRPC",
	"ShardedListAndWatch",
	"SizeBasedListCostEstimate",
	"StorageVersionAPI",
	"StorageVersionHash",
	"StreamingCollectionEncodingToJSON",
	"StreamingCollectionEncodingToProtobuf",
	"StructuredAuthenticationConfiguration",
	"StructuredAuthenticationConfigurationEgressSelector",
	"StructuredAuthenticationConfigurationJWKSMetrics",
	"TokenRequestServiceAccountUIDValidation",
	"UnauthenticatedHTTP2DOSMitigation",
	"UnknownVersionInteroperabilityProxy",
	"WatchCacheInitializationPostStartHook",
	"WatchList",
}

func isForeign(name string) bool { return slices.Contains(foreign, name) }
