package validation

import (
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// volumeSet checks the volumes of a pod, and remembers those that containers can mount.
func (c *podContext) volumeSet(at path, podName string) {
	made := map[string]bool{} // claims that are created with the pod
	for i := range c.spec.Volumes {
		if v := &c.spec.Volumes[i]; v.Ephemeral != nil && podName != "" {
			made[podName+"-"+v.Name] = true
		}
	}
	c.volumes = map[string]*corev1.Volume{}
	for i := range c.spec.Volumes {
		v, at := &c.spec.Volumes[i], at.Index(i)
		before := len(c.list)
		c.volumeSource(at, v, podName)
		if c.present(at.Child("name"), v.Name) {
			c.label(at.Child("name"), v.Name)
		}
		if c.volumes[v.Name] != nil {
			c.add(field.Duplicate(at.Child("name"), v.Name))
		}
		if len(c.list) == before {
			c.volumes[v.Name] = v
		}
		if pvc := v.PersistentVolumeClaim; pvc != nil && made[pvc.ClaimName] {
			c.invalid(at.Child("persistentVolumeClaim", "claimName"), pvc.ClaimName, "must not reference a PVC that gets created for an ephemeral volume")
		}
	}
}

// volumeSource checks that a volume has exactly one source, and checks that source.
func (c *podContext) volumeSource(at path, v *corev1.Volume, podName string) {
	names := setSources(&v.VolumeSource)
	if len(names) == 0 {
		c.required(at, "must specify a volume type")
		return
	}
	for _, name := range names[1:] {
		c.forbidden(at.Child(name), "may not specify more than 1 volume type")
	}
	at = at.Child(names[0])
	switch {
	case v.EmptyDir != nil && names[0] == "emptyDir":
		if l := v.EmptyDir.SizeLimit; l != nil && l.Cmp(resource.Quantity{}) < 0 {
			c.forbidden(at.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")
		}
	case v.HostPath != nil && names[0] == "hostPath":
		c.hostPath(at, v.HostPath)
	case v.Secret != nil && names[0] == "secret":
		c.present(at.Child("secretName"), v.Secret.SecretName)
		c.mode(at.Child("defaultMode"), v.Secret.DefaultMode)
		c.keyPaths(at.Child("items"), v.Secret.Items)
	case v.ConfigMap != nil && names[0] == "configMap":
		c.present(at.Child("name"), v.ConfigMap.Name)
		c.mode(at.Child("defaultMode"), v.ConfigMap.DefaultMode)
		c.keyPaths(at.Child("items"), v.ConfigMap.Items)
	case v.DownwardAPI != nil && names[0] == "downwardAPI":
		c.mode(at.Child("defaultMode"), v.DownwardAPI.DefaultMode)
		for i := range v.DownwardAPI.Items {
			c.downwardFile(at, &v.DownwardAPI.Items[i])
		}
	case v.Projected != nil && names[0] == "projected":
		c.projected(at, v.Projected)
	case v.PersistentVolumeClaim != nil && names[0] == "persistentVolumeClaim":
		c.present(at.Child("claimName"), v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil && names[0] == "ephemeral":
		c.ephemeralVolume(at, v, podName)
	case v.Image != nil && names[0] == "image":
		c.present(at.Child("reference"), v.Image.Reference)
		c.pullPolicy(at.Child("pullPolicy"), v.Image.PullPolicy)
	case v.CSI != nil && names[0] == "csi":
		c.csiVolume(at, v.CSI)
	default:
		c.otherVolume(at, v)
	}
}

// setSources returns the JSON names of the sources that are set, in the order of the
// type's fields.
func setSources(s *corev1.VolumeSource) []string {
	var names []string
	value := reflect.ValueOf(s).Elem()
	for i := range value.NumField() {
		if !value.Field(i).IsNil() {
			tag, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, tag)
		}
	}
	return names
}

var hostPathTypes = []corev1.HostPathType{
	corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
	corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
}

func (p *problems) hostPath(at path, h *corev1.HostPathVolumeSource) {
	if !p.present(at.Child("path"), h.Path) {
		return
	}
	p.noBacksteps(at.Child("path"), h.Path)
	if h.Type != nil {
		oneOf(p, at.Child("type"), *h.Type, hostPathTypes...)
	}
}

func (p *problems) keyPaths(at path, items []corev1.KeyToPath) {
	for i := range items {
		p.keyPath(at.Index(i), &items[i])
	}
}

func (p *problems) keyPath(at path, k *corev1.KeyToPath) {
	p.present(at.Child("key"), k.Key)
	p.present(at.Child("path"), k.Path)
	p.localFile(at.Child("path"), k.Path)
	p.mode(at.Child("mode"), k.Mode)
}

func (c *podContext) downwardFile(at path, f *corev1.DownwardAPIVolumeFile) {
	c.present(at.Child("path"), f.Path)
	c.localFile(at.Child("path"), f.Path)
	switch {
	case f.FieldRef != nil:
		c.fieldRef(at.Child("fieldRef"), f.FieldRef, volumeFields)
		if f.ResourceFieldRef != nil {
			c.invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case f.ResourceFieldRef != nil:
		c.resourceFieldRef(at.Child("resourceFieldRef"), f.ResourceFieldRef, true)
	default:
		c.required(at, "one of fieldRef and resourceFieldRef is required")
	}
	c.mode(at.Child("mode"), f.Mode)
}

func (c *podContext) ephemeralVolume(at path, v *corev1.Volume, podName string) {
	t := v.Ephemeral.VolumeClaimTemplate
	if t == nil {
		c.required(at.Child("volumeClaimTemplate"), "")
	} else {
		c.templateMeta(at.Child("volumeClaimTemplate", "metadata"), &t.ObjectMeta)
		c.claimSpec(at.Child("volumeClaimTemplate", "spec"), &t.Spec)
	}
	if podName != "" && v.Name != "" {
		claim := podName + "-" + v.Name
		for _, m := range utilvalidation.IsDNS1123Subdomain(claim) {
			c.invalid(at.Child("name"), v.Name, "PVC name %q: %v", claim, m)
		}
	}
}

func (c *podContext) csiVolume(at path, v *corev1.CSIVolumeSource) {
	c.csiDriver(at.Child("driver"), v.Driver)
	if r := v.NodePublishSecretRef; r != nil && c.present(at.Child("nodePublishSecretRef", "name"), r.Name) {
		c.subdomain(at.Child("name"), r.Name)
	}
}

const maxCSIDriverName = 63

func (p *problems) csiDriver(at path, name string) {
	if !p.present(at, name) {
		return
	}
	if len(name) > maxCSIDriverName {
		p.add(field.TooLong(at, "", maxCSIDriverName))
	}
	matches(p, at, name, utilvalidation.IsDNS1123Subdomain(strings.ToLower(name)))
}

// otherVolume checks sources that a node can no longer mount by itself, or that are rare. It checks
// only that the required fields are there.
func (c *podContext) otherVolume(at path, v *corev1.Volume) {
	need := func(fields ...string) {
		for i := 0; i+1 < len(fields); i += 2 {
			c.present(at.Child(fields[i]), fields[i+1])
		}
	}
	switch {
	case v.NFS != nil:
		c.nfs(at, v.NFS)
	case v.ISCSI != nil:
		c.iscsi(at, v.ISCSI)
	case v.GitRepo != nil:
		need("repository", v.GitRepo.Repository)
		c.descending(at.Child("directory"), v.GitRepo.Directory)
	case v.GCEPersistentDisk != nil:
		need("pdName", v.GCEPersistentDisk.PDName)
	case v.AWSElasticBlockStore != nil:
		need("volumeID", v.AWSElasticBlockStore.VolumeID)
	case v.Glusterfs != nil:
		need("endpoints", v.Glusterfs.EndpointsName, "path", v.Glusterfs.Path)
	case v.RBD != nil:
		need("image", v.RBD.RBDImage)
		if len(v.RBD.CephMonitors) == 0 {
			c.required(at.Child("monitors"), "")
		}
	case v.Cinder != nil:
		need("volumeID", v.Cinder.VolumeID)
	case v.CephFS != nil:
		if len(v.CephFS.Monitors) == 0 {
			c.required(at.Child("monitors"), "")
		}
	case v.Flocker != nil:
		c.flocker(at, v.Flocker)
	case v.FC != nil:
		c.fibreChannel(at, v.FC)
	case v.FlexVolume != nil:
		need("driver", v.FlexVolume.Driver)
	case v.AzureFile != nil:
		need("secretName", v.AzureFile.SecretName, "shareName", v.AzureFile.ShareName)
	case v.AzureDisk != nil:
		need("diskName", v.AzureDisk.DiskName, "diskURI", v.AzureDisk.DataDiskURI)
	case v.VsphereVolume != nil:
		need("volumePath", v.VsphereVolume.VolumePath)
	case v.PhotonPersistentDisk != nil:
		need("pdID", v.PhotonPersistentDisk.PdID)
	case v.PortworxVolume != nil:
		need("volumeID", v.PortworxVolume.VolumeID)
	case v.Quobyte != nil:
		need("registry", v.Quobyte.Registry, "volume", v.Quobyte.Volume)
	case v.ScaleIO != nil:
		need("gateway", v.ScaleIO.Gateway, "system", v.ScaleIO.System, "volumeName", v.ScaleIO.VolumeName)
	case v.StorageOS != nil:
		need("volumeName", v.StorageOS.VolumeName)
	}
}

func (p *problems) nfs(at path, n *corev1.NFSVolumeSource) {
	p.present(at.Child("server"), n.Server)
	p.present(at.Child("path"), n.Path)
	if !strings.HasPrefix(n.Path, "/") {
		p.invalid(at.Child("path"), n.Path, "must be an absolute path")
	}
}

func (p *problems) iscsi(at path, s *corev1.ISCSIVolumeSource) {
	p.iscsiTarget(at, s.TargetPortal, s.IQN, s.Lun, s.InitiatorName)
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		p.required(at.Child("secretRef"), "")
	}
}

// persistentISCSI is iscsi for the volume of a claim.
func (p *problems) persistentISCSI(at path, volume string, s *corev1.ISCSIPersistentVolumeSource) {
	p.iscsiTarget(at, s.TargetPortal, s.IQN, s.Lun, s.InitiatorName)
	if s.InitiatorName != nil && len(volume)+1+len(s.TargetPortal) > maxISCSIInterface {
		p.invalid(at.Child("targetportal"), s.TargetPortal, "Total length of <volume name>:<iscsi.targetPortal> must be under %d "+
			"characters if iscsi.initiatorName is specified.", maxISCSIInterface)
	}
	switch {
	case s.SecretRef != nil:
		p.present(at.Child("secretRef", "name"), s.SecretRef.Name)
	case s.DiscoveryCHAPAuth || s.SessionCHAPAuth:
		p.required(at.Child("secretRef"), "")
	}
}

// maxISCSIInterface is how long the name of an interface can be, in bytes, which is made of the portal and the volume.
const maxISCSIInterface = 64

func (p *problems) iscsiTarget(at path, portal, iqn string, lun int32, initiator *string) {
	p.present(at.Child("targetPortal"), portal)
	if p.present(at.Child("iqn"), iqn) {
		p.iscsiName(at.Child("iqn"), iqn)
	}
	p.lun(at.Child("lun"), lun)
	if initiator != nil {
		p.iscsiName(at.Child("initiatorname"), *initiator)
	}
}

// iscsiNames are the forms that the name of a target or of an initiator can have (RFC 3720, RFC 3980), as upstream takes them.
var iscsiNames = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

func (p *problems) iscsiName(at path, name string) {
	form := iscsiNames[name[:min(len(name), len("iqn"))]]
	switch {
	case form == nil:
		p.invalid(at, name, "must be valid format starting with iqn, eui, or naa")
	case !form.MatchString(name):
		p.invalid(at, name, "must be valid format")
	}
}

func (p *problems) lun(at path, lun int32) {
	if lun < 0 || lun > 255 {
		p.invalid(at, lun, "%s", utilvalidation.InclusiveRangeError(0, 255))
	}
}

func (p *problems) flocker(at path, f *corev1.FlockerVolumeSource) {
	switch {
	case f.DatasetName == "" && f.DatasetUUID == "":
		p.required(at, "one of datasetName and datasetUUID is required")
	case f.DatasetName != "" && f.DatasetUUID != "":
		p.invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(f.DatasetName, "/") {
		p.invalid(at.Child("datasetName"), f.DatasetName, "must not contain '/'")
	}
}

func (p *problems) fibreChannel(at path, f *corev1.FCVolumeSource) {
	names, ids := len(f.TargetWWNs) > 0, len(f.WWIDs) > 0
	switch {
	case !names && !ids:
		p.required(at.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both")
	case names && ids:
		p.invalid(at.Child("targetWWNs"), f.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if names && f.Lun == nil {
		p.required(at.Child("lun"), "lun is required if targetWWNs is specified")
	} else if names {
		p.lun(at.Child("lun"), *f.Lun)
	}
}
