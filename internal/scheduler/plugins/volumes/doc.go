// Package volumes has the scheduler's plugins that see to volumes: VolumeBinding, VolumeRestrictions,
// NodeVolumeLimits and VolumeZone, with upstream's reasons.
//
// What a pod's claims need is worked out once, in PreFilter. Whether a node has it is then a function of values:
// match.go knows the volumes that exist, provision.go those that could be made. VolumeBinding reserves what it has
// chosen in memory (assumed.go), so that no volume is promised to two pods, writes that to the API in PreBind, and
// waits there until the controller of volumes has done its part (prebind.go).
package volumes
