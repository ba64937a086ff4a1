// Package framework runs scheduling plugins. The plugins' interfaces are those of
// k8s.io/kube-scheduler/framework, so a plugin written against them works here. This package has
// the types behind them (NodeInfo, PodInfo, CycleState) and the Profile, which calls the plugins of
// each extension point in their order.
package framework
