package main

import "regexp"

// known are differences that stay, with the reason. Each is matched against what was asked and what differs.
var known = []struct{ like, why string }{
	{`^get /(api|version|\.well-known/.*):`, "each has its own address, name and version"},
	{`^get /apis: \.groups\[metrics\.k8s\.io\]`, "resource metrics are served without another server here"},
	{`namespaces/finalize`, "it can be read here, too"},
	{`metadata\.generation: ours 1, upstream's 2`, "upstream counts a change that it then drops"},
	{`managedFields`, "a field that upstream's conversions set, or a time of its own"},
	{`stopSignal`, "ContainerStopSignals is on here"},
	{`SelfSubjectRulesReview .*Rules\[`, "the rules come in another order"},
	{`\.spec\.clusterIPs?(\[0\])?: ours allocated, upstream's 10\.200`, "upstream also gives addresses of a range that has just been made"},
	{`Service .*[nN]odePort`, "upstream's dry runs do not check node ports, or fail over them"},
	{`Service spec\.(clusterIPs? |type = )`, "of fields that hang together, another one is told"},
	{`EndpointSlice ports\[0\]\.port = `, "nobody can connect to such a port"},
	{`LimitRange metadata\.name = "": \.metadata\.name`, "the name is made up"},
	{`runtimeClassName = .*upstream's 500`, "there is no such class, which is not the server's fault"},
	{`(volumes( as in the example|\[\d+\])|PersistentVolume spec).*only (ours|upstream's): `, "which of several kinds of volumes is one too many; and kinds that nobody mounts any more"},
	{`PersistentVolume spec\.flexVolume`, "upstream forgets to count this kind"},
	{`topologySpreadConstraints with the first one twice`, "which of two equal ones is one too many"},
	{`Pod metadata\.name = .*spec\.volumes\[6\]`, "the field in which a claim's name is too long"},
	{`webhooks\[0\]\.clientConfig\.service\.name(space)? (left out|= "")`, "upstream names each for the other"},
	{`ResourceQuota spec\.scopeSelector`, "upstream does not say which of the expressions"},
	{`update (Job|ResourceClaim|ResourceClaimTemplate|RuntimeClass) `, "upstream looks further at a field that must not change, or less far"},
	{`(create|update) CronJob .*resourceClaims|resourceClaims as in the example|create ResourceClaimTemplate .* as in the example`, "upstream looks further at a field that is wrong already"},
	{`ResourceClaim(/status)? .* as in the example`, "upstream looks further at a field that is wrong already, or less far"},
	{`Job spec\.completions left out`, "upstream's words about a success policy are other ones"},
	{`update ConfigMap metadata\.(finalizers|generateName)`, "upstream looks at these again in updates of some kinds"},
	{`ReplicationController .*terminationGracePeriodSeconds`, "upstream warns when one is made, and not when it is changed"},
	{`StorageClass allowedTopologies`, "upstream takes an empty term for the same as another one"},
	{`FlowSchema spec\.rules\[0\]\.subjects\[0\]\.kind `, "one mistake is told here as two"},
	{`PriorityLevelConfiguration spec\.(limited\.limitResponse\.)?type `, "upstream tells one mistake as two"},
	{`PersistentVolumeClaim spec\.dataSource(Ref)?\.apiGroup`, "what is no group is told here as such"},
	{`StatefulSet spec\.volumeClaimTemplates with an empty one`, "the volume that is made of it comes last here"},
	{`VolumeAttachment .*only upstream's`, "upstream looks further at a source that is refused anyway"},
	{`LimitRange spec\.limits\[0\]\.default(Request)? as in the example`, "pods have no defaults, whatever they are called"},
	{`LimitRange .*maxLimitRequestRatio`, "the ratio of two limits that contradict each other"},
	{`forbidden: \[maximum cpu usage`, "several reasons in another order"},
	{`ResourceSlice .*requestPolicy`, "which of two fields that contradict each other is told; upstream does not look again in updates"},
	{`ResourceClaim .*Attribute doubled`, "in which order two mistakes of a name are told"},
	{`you requested PartialObjectMetadata`, "upstream prints the names of its internal types"},
	{`"?resourceVersion"?[=:].*parsing "x"`, "a client's mistake is not the server's"},
	{`"?apiVersion"?:null.*undeterminable`, "upstream does not find its internal type then, and says that a name is missing"},
	{`Service.*merge .*clusterIPs`, "each server has its own"},
	{`watch from the start: \[\d\]\.object\.spec`, "upstream sets fields of objects that only mark a version"},
	{`watch from the start: \[2\]`, "another bookmark before the end"},
	{`read \w+ (list |watch |status )?as .*columnDefinitions\[\w+\]\.(description|format)`, "upstream takes these from older versions"},
	{`read IPAddress .*cells\[2\]`, "upstream has a cell more than columns"},
	{`read Job .*controller-uid`, "each has its own UIDs"},
	{`read CSIStorageCapacity .*(columnDefinitions|cells)`, "upstream has the table of kinds without one"},
	{`read (ResourceClaim|DeviceTaintRule) status as .*ours 200.*upstream's 406`, "statuses as tables"},
	{`deprecated\.daemonset\.template\.generation`, "upstream adds the annotation in a conversion only"},
	{`read (Job|ResourceSlice) .*fieldSelector=.*not supported`, "upstream has other words for these"},
	{`ask LimitRange POST .*metadata\.name`, "the name is made up"},
	{`ignoreStoreReadError.*(upstream's 500|/ingress/|/controllers/)`, "upstream has no such deletion for these kinds; what can be read is not deleted so"},
	{`(patch|apply) Job .*uid.*only ours`, "the labels that have the UID do not match then"},
	{`(patch|apply) (ResourceClaim|ResourceClaimTemplate) .*only upstream's`, "upstream looks further at a field that must not change"},
	{`patch ResourceQuota .*scopeSelector`, "upstream does not say which of the expressions"},
	{`patch StorageClass .*allowedTopologies`, "upstream takes an empty term for the same as another one"},
	{`apply \w+/status brand-new`, "there is none to have a status"},
	{`^key /registry/(apiextensions|apiregistration)\.k8s\.io/.*JSON`, "either is read by both"},
	{`^key /registry/(devicetaintrules|storageversionmigrations)/`, "stored in v1 here"},
	{`^key /registry/(cluster)?roles?(bindings)?/.*(system:|upstream's "")`, "roles of our own components, and of former ones of upstream's"},
	{`^key /registry/(ipaddresses|leases|masterleases|peerserverleases|ranges|wherry\.dev)/`, "each server's own"},
	{`^key /registry/(configmaps/kube-system/extension-apiserver-authentication|apiregistration.k8s.io/apiservices/v1beta1.metrics)`, "upstream is not asked for it here"},
	{`call (GET|POST) /: \.paths`, "each has checks of its own"},
	{`call GET /(api/?|apis/|version/):`, "each has its own address, groups and version"},
	{`call GET /(openapi/v3/(none|api/v9)|debug/pprof)`, "the body of what is no object"},
	{`"system:node:a"`, "upstream has no authorizer of nodes here"},
	{`/token[ ?].*(audiences\[0\]|\.status\.token)|tokenreviews .*audiences`, "each is an issuer of its own"},
	{`/log\?.*query parameter`, "which parameter it is, is told here"},
	{`/log\?stream=`, "streams can be selected here"},
	{`services/none/proxy`, "that there is none is told here"},
	{`"generateName":"x-"`, "the name is made up"},
	{`ours 400 the strategic merge patch.*upstream.s 0 `, "upstream panics"},
	{`Service .*cells`, "the node port that was allocated"},
	{`list continue=.*upstream's 410`, "the version of the token is compacted after five minutes, in each server's own time"},
	{`subjectaccessreviews .*status\.reason: ours RBAC: allowed.*upstream's RBAC: allowed`, "which of two roles that allow it is named"},
	{`ClusterRole aggregationRule`, "upstream tells one mistake as two"},
}

// patterns are those of known.
var patterns = func() (out []*regexp.Regexp) {
	for _, k := range known {
		out = append(out, regexp.MustCompile(`(?s)`+k.like))
	}
	return out
}()

// knownTo returns why a difference stays, or "".
func knownTo(about, what string) string {
	for i, p := range patterns {
		if p.MatchString(about + ": " + what) {
			return known[i].why
		}
	}
	return ""
}
