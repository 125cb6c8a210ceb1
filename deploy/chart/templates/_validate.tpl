{{/* Mistakes in several values together, which the schema cannot explain in plain words. */}}
{{- define "fomo-stream.validate" -}}
{{- include "fomo-stream.validateSettings" . -}}
{{- include "fomo-stream.validateResources" . -}}
{{- $selection := required "settings.topic is required: the topic to read records from (--set settings.topic=sensors)" (include "fomo-stream.selection" .) -}}
{{- $topic := include "fomo-stream.topic" . -}}
{{- $names := include "fomo-stream.topics" . | fromJsonArray -}}
{{- $bootstrap := required "settings.bootstrap is required: the addresses of the brokers (--set settings.bootstrap=kafka:9092)" .Values.settings.bootstrap -}}
{{- $group := include "fomo-stream.group" . -}}
{{- if and (eq $topic "{topic}") (not (contains $topic $group)) (not .Values.settings.topics) -}}
{{- fail (printf "settings.group is %s, but each topic of %s needs a group of its own: write {topic} in it" $group $selection) -}}
{{- end -}}
{{- range default (list "t") $names -}}
{{- $state := include "fomo-stream.stateTopic" $ | replace "{topic}" . -}}
{{- if not (regexMatch "^[a-zA-Z0-9._-]{1,249}$" $state) -}}
{{- fail (printf "settings.group is %s, but the state topic is named after it, %s, and a topic has at most 249 letters from a to z, digits, and the characters . _ -" $group $state) -}}
{{- end -}}
{{- end -}}
{{- $config := lookup "v1" "ConfigMap" .Release.Namespace (include "fomo-stream.fullname" .) -}}
{{- $line := regexFind "(?m)^group = .*" (dig "data" "fomo.toml" "" (default dict $config)) -}}
{{- $kept := printf "group = %q" $group | splitList "{topic}" -}}{{/* from one topic to several, and back, a topic keeps its group */}}
{{- if and $line (not .Values.settings.group) (ne ($line | replace "{topic}" $topic) (join $topic $kept)) (or (eq (len $kept) 1) (not (hasPrefix (first $kept) $line))) -}}
{{- fail (printf "this release runs with %s; without settings.group it would begin anew as %s: give --set settings.group=... to say which" $line $group) -}}
{{- end -}}
{{- $setBy := dict "FOMO_BOOTSTRAP" "settings.bootstrap" "FOMO_CONFIG" "settings" "FOMO_DEVICE" "gpu.enabled" "FOMO_GROUP" "settings.group" "FOMO_HEALTH_PORT" "service.port" "FOMO_HTTP_HOST" "service.host" "FOMO_INSTANCE_ID" "none, because it is the name of the pod" "FOMO_PROCESSES" "replicas" "FOMO_REGISTRY" "registry.url" "FOMO_REGISTRY_URL" "registry.url" "FOMO_RESET_STATE" "none, because it would delete the state at every restart" "FOMO_TOPIC" "settings.topic" "FOMO_WAIT" "settings.wait" -}}
{{- range .Values.extraEnv -}}
{{- $name := .name -}}
{{- with get $setBy $name -}}
{{- fail (printf "extraEnv: %s is set by the chart, from other values; use %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- $alerts := or .Values.settings.alerts .Values.settings.topics -}}{{/* a section may name its own */}}
{{- if and (not (include "fomo-stream.out" .)) (not $alerts) -}}
{{- fail "settings.out is none, but settings.alerts names no topic for outliers: no score would be written" -}}
{{- end -}}
{{- if and .Values.settings.silence (not $alerts) -}}
{{- fail "settings.silence needs settings.alerts, the topic for its alerts" -}}
{{- end -}}
{{- if eq (default "" .Values.settings.alerts) "none" -}}
{{- fail "settings.alerts is none, which names no topic; leave it out to write no alerts to a topic of their own" -}}
{{- end -}}
{{- $topics := compact (list $topic (include "fomo-stream.out" .) (include "fomo-stream.named" (list . "alerts" "")) (include "fomo-stream.deadLetters" .) (include "fomo-stream.named" (list . "feedback" "")) (include "fomo-stream.stateTopic" .)) -}}
{{- if ne (len $topics) (len (uniq $topics)) -}}
{{- fail (printf "settings: topic, out, alerts, dead-letters, feedback and the state topic must be different topics, but they are %s" (join ", " $topics)) -}}
{{- end -}}
{{- if and .Values.keda.enabled .Values.autoscaling.enabled -}}
{{- fail "keda.enabled and autoscaling.enabled exclude each other: both would set the number of instances" -}}
{{- end -}}
{{- if .Values.keda.enabled -}}{{- include "fomo-stream.validateScale" (list . "keda" .Values.keda) -}}{{- end -}}
{{- if .Values.autoscaling.enabled -}}{{- include "fomo-stream.validateScale" (list . "autoscaling" .Values.autoscaling) -}}{{- end -}}
{{- if and .Values.autoscaling.enabled (not (dig "requests" "cpu" "" (default dict .Values.resources))) -}}
{{- fail "autoscaling needs resources.requests.cpu: it scales on a percentage of it" -}}
{{- end -}}
{{- if and .Values.partitions (not (include "fomo-stream.isScaled" .)) (gt (int .Values.replicas) (int .Values.partitions)) -}}
{{- fail (printf "replicas is %d, but settings.topic has %d partitions: the other instances would have nothing to do" (int .Values.replicas) (int .Values.partitions)) -}}
{{- end -}}
{{- include "fomo-stream.validateKafka" . -}}
{{- include "fomo-stream.validateRegistry" . -}}
{{- if .Values.notify.enabled -}}{{- include "fomo-stream.validateNotify" . -}}{{- end -}}
{{- if or .Values.strimzi.topics.enabled .Values.strimzi.user.enabled -}}
{{- if eq $topic "{topic}" -}}
{{- fail (printf "strimzi.topics and strimzi.user are for one topic, and settings.topic is %s: create topics and user yourself, with the permissions in deploy/README.md for each topic, or install a release for each topic" $selection) -}}
{{- end -}}
{{- $cluster := required "strimzi.cluster is required: the name of the Kafka object" .Values.strimzi.cluster -}}
{{- end -}}
{{- if hasKey (default dict .Values.strimzi.topics.config) "min.insync.replicas" -}}
{{- fail "strimzi.topics.config: give min.insync.replicas as strimzi.topics.minInsyncReplicas" -}}
{{- end -}}
{{- if and .Values.strimzi.topics.enabled (not .Values.partitions) -}}
{{- fail "strimzi.topics needs `partitions`: the topics get as many as settings.topic has" -}}
{{- end -}}
{{- end -}}

{{/* Arguments: the root, the name of the scaler, its values. */}}
{{- define "fomo-stream.validateScale" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}{{- $values := index . 2 -}}
{{- $partitions := int $root.Values.partitions -}}
{{- if and (eq $name "keda") (not (include "fomo-stream.topics" $root | fromJsonArray)) -}}
{{- fail (printf "keda reads the lag of topics by name, but settings has a pattern, %s: name the topics in settings.topic, and each in settings.topics, or use autoscaling" (include "fomo-stream.selection" $root)) -}}
{{- end -}}
{{- if not $partitions -}}
{{- fail (printf "%s needs `partitions`, the number of partitions of settings.topic: more instances would have nothing to do" $name) -}}
{{- end -}}
{{- $most := default $partitions $values.maxReplicas | int -}}
{{- if gt $most $partitions -}}
{{- fail (printf "%s.maxReplicas is %d, but settings.topic has %d partitions: the other instances would have nothing to do" $name $most $partitions) -}}
{{- end -}}
{{- if gt (int $values.minReplicas) $most -}}
{{- fail (printf "%s.minReplicas is %d, but there can be at most %d instances" $name (int $values.minReplicas) $most) -}}
{{- end -}}
{{- end -}}

{{- define "fomo-stream.validateKafka" -}}
{{- $reserved := list "bootstrap.servers" "group.id" "group.instance.id" "auto.offset.reset" "enable.auto.commit" "enable.auto.offset.store" "enable.idempotence" "isolation.level" "partition.assignment.strategy" "transactional.id" -}}
{{- range $key, $_ := .Values.kafka.settings -}}
{{- if has $key $reserved -}}
{{- fail (printf "kafka.settings: %s cannot be set, because delivery depends on it; see `settings` in values.yaml" $key) -}}
{{- end -}}
{{- if regexMatch "password|secret|passphrase|key\\.pem$|oauthbearer\\.config$" $key -}}
{{- fail (printf "kafka.settings: %s is a secret, and would become part of a ConfigMap; use extraEnv with FOMO_KAFKA_%s and valueFrom.secretKeyRef" $key ($key | upper | replace "." "_")) -}}
{{- end -}}
{{- end -}}
{{- $tls := .Values.kafka.tls -}}{{- $sasl := .Values.kafka.sasl -}}
{{- if and (not $tls.enabled) (or $tls.ca.existingSecret $tls.client.existingSecret) -}}
{{- fail "kafka.tls has Secrets, but kafka.tls.enabled is false" -}}
{{- end -}}
{{- if $sasl.enabled -}}
{{- $secret := required "kafka.sasl.existingSecret is required: the Secret with the password" $sasl.existingSecret -}}
{{- if not (or $sasl.username $sasl.usernameKey) -}}
{{- fail "kafka.sasl needs username, or usernameKey: its key in the Secret" -}}
{{- end -}}
{{- else if or $sasl.existingSecret $sasl.username -}}
{{- fail "kafka.sasl has a user, but kafka.sasl.enabled is false" -}}
{{- end -}}
{{- end -}}

{{- define "fomo-stream.validateNotify" -}}
{{- $notify := .Values.notify -}}{{- $settings := default dict $notify.settings -}}
{{- $topic := required "settings.alerts is required: notify reads the topic that it names" .Values.settings.alerts -}}
{{- $ofNotify := list "alertmanager" "group" "log-level" "per-hour" "start" "status-url" -}}
{{- range $name, $value := $settings -}}
{{- if has $name (list "webhook" "to") -}}
{{- fail (printf "notify.settings: %s may hold a secret, and would become part of a ConfigMap; use notify.targets" $name) -}}
{{- end -}}
{{- if not (has $name $ofNotify) -}}
{{- fail (printf "notify.settings.%s is not known; names are %s" $name (join ", " $ofNotify)) -}}
{{- end -}}
{{- if regexMatch "//[^/,]*@" (toString $value) -}}
{{- fail (printf "notify.settings: %s has a secret, and would become part of a ConfigMap; use notify.targets" $name) -}}
{{- end -}}
{{- end -}}
{{- if contains "{topic}" $topic -}}
{{- fail "notify reads one topic of alerts: write settings.alerts without {topic}, as topics can share it" -}}
{{- end -}}
{{- if not (or $notify.targets.existingSecret $settings.alertmanager) -}}
{{- fail "notify.targets.existingSecret is required: the Secret with the targets; or name an Alertmanager in notify.settings" -}}
{{- end -}}
{{- end -}}

{{- define "fomo-stream.validateRegistry" -}}
{{- $registry := .Values.registry -}}{{- $auth := $registry.auth -}}{{- $tls := $registry.tls -}}
{{- range $key, $value := merge (dict "url" (default "" $registry.url)) (default dict $registry.settings) -}}
{{- if or (regexMatch "password|secret|user\\.info|auth\\.token$" $key) (regexMatch "//[^/,]*@" (toString $value)) -}}
{{- fail (printf "registry: %s has a secret, and would become part of a ConfigMap; use registry.auth, or extraEnv with FOMO_REGISTRY_%s and valueFrom.secretKeyRef" $key ($key | upper | replace "." "_")) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (default dict $registry.settings) "url" -}}
{{- fail "registry.settings: give url as registry.url" -}}
{{- end -}}
{{- if not $registry.url -}}
{{- if or $registry.settings $auth.existingSecret $tls.ca.existingSecret $tls.client.existingSecret -}}
{{- fail "registry.url is required: registry has settings or Secrets" -}}
{{- end -}}
{{- if eq (get .Values.settings "output-format" | toString) "registry" -}}
{{- fail "registry.url is required: settings.output-format is registry" -}}
{{- end -}}
{{- end -}}
{{- if and (or $tls.ca.existingSecret $tls.client.existingSecret) (not (contains "https://" $registry.url)) -}}
{{- fail "registry.tls has Secrets, but registry.url does not begin with https://" -}}
{{- end -}}
{{- if $auth.existingSecret -}}
{{- if and $auth.tokenKey (not (hasKey (default dict $registry.settings) "bearer.auth.logical.cluster")) -}}
{{- fail "registry.auth.tokenKey needs bearer.auth.logical.cluster in registry.settings: its client asks for one. It may be any text where the registry has no logical clusters" -}}
{{- end -}}
{{- if not (or $auth.tokenKey $auth.username $auth.usernameKey) -}}
{{- fail "registry.auth needs username, or in the Secret usernameKey or tokenKey" -}}
{{- end -}}
{{- else if or $auth.username $auth.usernameKey $auth.tokenKey -}}
{{- $secret := required "registry.auth.existingSecret is required: the Secret with the password or the token" $auth.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* The schema cannot say which name was meant. The names are those in the schema. */}}
{{- define "fomo-stream.validateSettings" -}}
{{- $known := list
"adapt-after" "admit" "alert-rate" "alerts" "backend" "batch-size" "bootstrap" "categorical" "context-size" "counters"
"dead-letters" "delivery" "derive" "explain" "features" "feedback" "feedback-memory" "group"
"incident-quiet" "kernel" "key" "keys" "lags" "log-level" "max-latency-ms" "max-record-bytes" "min-context" "missing-values" "model" "mute-key"
"on-lost-offset" "otlp" "out" "output-format" "own-contexts" "reference" "exclude" "time" "timezone" "tombstones" "rules" "maintenance" "calendar" "min-severity" "only-rises" "only-falls" "ignore" "valid" "result-field" "schema-file" "schema-wait" "scores-only"
"seed" "seed-context" "show-keys" "silence" "silence-min" "silence-of" "start" "still" "stuck-values" "subject-strategy" "threads" "time-features" "topic" "topics" "views" "wait" "warm" -}}
{{- $tables := dict "settings" .Values.settings -}}
{{- range $topic, $section := .Values.settings.topics }}{{ $_ := set $tables (printf "settings.topics.%s" $topic) (default dict $section) }}{{ end -}}
{{- range $place, $table := $tables -}}
{{- range $name, $_ := $table -}}
{{- if not (has $name $known) -}}
{{- $hint := "docs/flags-and-output.md has the names, and values.yaml those that belong elsewhere" -}}
{{- range $known -}}
{{- if eq (replace "-" "" .) (regexReplaceAll "[-_. ]" $name "" | lower) -}}{{- $hint = printf "did you mean %s?" . -}}{{- end -}}
{{- end -}}
{{- fail (printf "%s.%s is not known; %s" $place $name $hint) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Kubernetes would refuse a limit below its request only in the middle of an upgrade, and not refuse too little memory. */}}
{{- define "fomo-stream.validateResources" -}}
{{- $requests := dig "requests" (dict) (default dict .Values.resources) | default dict -}}
{{- $limits := dig "limits" (dict) (default dict .Values.resources) | default dict -}}
{{- range $name, $limit := $limits -}}
{{- with get $requests $name -}}
{{- if lt (include "fomo-stream.quantity" $limit | float64) (include "fomo-stream.quantity" . | float64) -}}
{{- fail (printf "resources.limits.%s is %v, less than resources.requests.%s, %v: lower the request too, or raise the limit" $name $limit $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $limits.memory -}}
{{- if lt (include "fomo-stream.quantity" . | float64) (include "fomo-stream.quantity" "240Mi" | float64) -}}
{{- fail (printf "resources.limits.memory is %v: an instance needs 240Mi with one partition, and 11Mi for each further one; plan 1Gi" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes as a number, such as 536870912 for 512Mi. */}}
{{- define "fomo-stream.quantity" -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[a-zA-Z]+$" $text -}}
{{- $factors := dict "" 1.0 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- if not (and (hasKey $factors $unit) (regexMatch "^[0-9.]+([eE][-+]?[0-9]+)?$" (trimSuffix $unit $text))) -}}
{{- fail (printf "resources: %s is not a quantity of Kubernetes, such as 500m or 2Gi" $text) -}}
{{- end -}}
{{- mulf (trimSuffix $unit $text | float64) (get $factors $unit) -}}
{{- end -}}
