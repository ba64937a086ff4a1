package main

// Profiles beside the default one. Both schedulers have all of them.
const profilePacked, profileRatio, profileOrdered = "packed", "ratio", "ordered"

// profiles are those of the configuration. NodeResourcesBalancedAllocation must not name example.com/gpu: upstream's panics.
const profiles = `
- schedulerName: default-scheduler
  plugins: {preBind: {disabled: [{name: "*"}]}}
- schedulerName: ordered
  plugins:
    preBind: {disabled: [{name: "*"}]}
    score: {disabled: [{name: NodeAffinity}], enabled: [{name: NodeAffinity, weight: 2000}]}
- schedulerName: packed
  plugins: {preBind: {disabled: [{name: "*"}]}}
  pluginConfig:
  - {name: VolumeBinding, args: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}, {name: memory, weight: 1}, {name: example.com/gpu, weight: 2}]}}
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints:
      - {maxSkew: 2, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 40, ignorePreferredTermsOfExistingPods: true}}
- schedulerName: ratio
  plugins:
    preBind: {disabled: [{name: "*"}]}
    score: {disabled: [{name: ImageLocality}], enabled: [{name: TaintToleration, weight: 7}]}
  pluginConfig:
  - {name: VolumeBinding, args: {shape: [{utilization: 0, score: 10}, {utilization: 100, score: 0}]}}
  - name: NodeResourcesFit
    args:
      ignoredResources: [example.com/gpu]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 1}, {name: memory, weight: 2}, {name: ephemeral-storage, weight: 1}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 2}, {utilization: 40, score: 9}, {utilization: 100, score: 4}]}
  - {name: NodeResourcesBalancedAllocation, args: {resources: [{name: cpu, weight: 1}, {name: ephemeral-storage, weight: 1}]}}
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: NotIn, values: [r0]}]}]
        preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 50, preference: {matchExpressions: [{key: disk, operator: In, values: [ssd]}]}}
`
