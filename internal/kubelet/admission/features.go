package admission

// Features are those of upstream's feature gates that change what the API server or the scheduler
// may count on, and that this kubelet always has (KEP-5328).
var Features = map[string]bool{
	"ExtendWebSocketsToKubelet":               true,
	"ContainerRestartRules":                   true,
	"RestartAllContainersOnContainerExits":    true,
	"InPlacePodLevelResourcesVerticalScaling": true,
	"InPlacePodVerticalScalingInitContainers": true,
}
