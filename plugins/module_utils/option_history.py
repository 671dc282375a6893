# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When SGLang's options came and went; written by bin/option-history, only used for hints."""

from __future__ import annotations

# name, first recorded version, first version without it, deprecated since ('-': not known)
TABLE = """
abort_on_priority_when_disabled 0.5.4
admin_api_key 0.5.8
allow_auto_truncate 0.5.4
allowed_media_domains 0.5.18
api_key 0.5.4
asr_max_buffer_seconds 0.5.13
asr_max_concurrent_sessions 0.5.13
attention_backend 0.5.4
attention_context_parallel_size 0.5.9
attention_data_parallel_size 0.5.22
attn_cp_size 0.5.9
attn_dp_size 0.5.22
base_gpu_id 0.5.4
batch_notify_size 0.5.11
bf16_gemm_backend 0.5.15
boundary_reduction 0.5.21
bucket_e2e_request_latency 0.5.4
bucket_inter_token_latency 0.5.4
bucket_time_to_first_token 0.5.4
c128_page_size 0.5.18
chat_template 0.5.4
checkpoint_engine_wait_weights_before_ready 0.5.4
chunked_prefill_size 0.5.4
collect_tokens_histogram 0.5.4 0.5.20 0.5.11
completion_template 0.5.4
config 0.5.4
constrained_json_disable_any_whitespace 0.5.4
constrained_json_max_whitespace_cnt 0.5.21
constrained_json_whitespace_pattern 0.5.4
context_bucket 0.5.21
context_length 0.5.4
cp_strategy 0.5.14
cpu_offload_gb 0.5.4
crash_dump_folder 0.5.4
cuda_graph_backend_decode 0.5.14
cuda_graph_backend_prefill 0.5.14
cuda_graph_bs 0.5.4 0.5.20 0.5.14
cuda_graph_bs_decode 0.5.14
cuda_graph_bs_prefill 0.5.14
cuda_graph_config 0.5.14
cuda_graph_max_bs 0.5.4 0.5.20 0.5.14
cuda_graph_max_bs_decode 0.5.14
cuda_graph_max_bs_prefill 0.5.14
cuda_graph_max_seq_len_prefill 0.5.21
cuda_graph_prefill_max_context 0.5.21
cuda_graph_tc_compiler 0.5.14 0.5.22
custom_sigquit_handler 0.5.7 0.5.14
custom_weight_loader 0.5.4
data_parallel_size 0.5.4
dcp_comm_backend 0.5.17
dcp_replicate_q_proj 0.5.17
dcp_size 0.5.15
debug_cuda_graph 0.5.11
debug_tensor_dump_inject 0.5.4 0.5.14
debug_tensor_dump_input_file 0.5.4
debug_tensor_dump_layers 0.5.5
debug_tensor_dump_output_folder 0.5.4
decode_attention_backend 0.5.4
decode_context_parallel_size 0.5.15
decode_log_interval 0.5.4
decoupled_spec_bind_endpoint 0.5.15
decoupled_spec_connect_endpoints 0.5.15
decoupled_spec_rank 0.5.15
decoupled_spec_role 0.5.15
decrypted_config_file 0.5.5
decrypted_draft_config_file 0.5.5
deepep_config 0.5.4
deepep_dispatcher_output_dtype 0.5.13
deepep_mode 0.5.4
deepep_v2_mode 0.5.19
default_chat_template_kwargs 0.5.16
default_priority_value 0.5.10
delete_ckpt_after_loading 0.5.4
detokenizer_worker_num 0.5.12
device 0.5.4
disable_aiter_allreduce_fusion_in_decode 0.5.21
disable_aiter_allreduce_fusion_in_prefill 0.5.21
disable_attn_tp_gather 0.5.13
disable_chunked_prefix_cache 0.5.4
disable_cuda_graph 0.5.4 - 0.5.14
disable_cuda_graph_padding 0.5.4
disable_custom_all_reduce 0.5.4
disable_decode_cuda_graph 0.5.14
disable_fast_image_processor 0.5.4 - 0.5.18
disable_flashinfer_autotune 0.5.7
disable_flashinfer_cutlass_moe_fp4_allgather 0.5.4
disable_hicache_numa_detect 0.5.8 0.5.10
disable_hybrid_swa_memory 0.5.4
disable_outlines_disk_cache 0.5.4
disable_overlap_schedule 0.5.4
disable_piecewise_cuda_graph 0.5.10 0.5.20 0.5.14
disable_prefill_cuda_graph 0.5.14
disable_priority_preemption 0.5.10
disable_radix_cache 0.5.4
disable_shared_experts_fusion 0.5.4
disable_tokenizer_batch_decode 0.5.4
disaggregation_bootstrap_port 0.5.4
disaggregation_decode_allocation_policy 0.5.22
disaggregation_decode_dp 0.5.4 0.5.10
disaggregation_decode_enable_fake_auto 0.5.7 0.5.9
disaggregation_decode_enable_offload_kvcache 0.5.4
disaggregation_decode_enable_radix_cache 0.5.11
disaggregation_decode_extra_slots 0.5.14
disaggregation_decode_host_receive_threshold 0.5.21
disaggregation_decode_polling_interval 0.5.4
disaggregation_decode_retraction_backup 0.5.18
disaggregation_decode_tp 0.5.4 0.5.10
disaggregation_enable_kv_checksum 0.5.21
disaggregation_ib_device 0.5.4
disaggregation_mode 0.5.4
disaggregation_prefill_pp 0.5.4 0.5.10
disaggregation_transfer_backend 0.5.4
dist_init_addr 0.5.4
dist_timeout 0.5.4
dllm_algorithm 0.5.6.post2
dllm_algorithm_config 0.5.6.post2
dllm_fdfo 0.5.16
download_dir 0.5.4
dp_size 0.5.4
ds_channel_config_path 0.5.4 0.5.11
ds_heavy_channel_num 0.5.4 0.5.11
ds_heavy_channel_type 0.5.4 0.5.11
ds_heavy_token_num 0.5.4 0.5.11
ds_sparse_decode_threshold 0.5.4 0.5.11
dsa_decode_backend 0.5.13
dsa_paged_mqa_logits_backend 0.5.15
dsa_prefill_backend 0.5.13
dsa_prefill_cp_mode 0.5.13 0.5.20 0.5.14
dsa_topk_backend 0.5.13
dsa_triton_union 0.5.22
dsv4_attn_backend 0.5.20
dsv4_prefill_backend 0.5.19
dtype 0.5.4
dwdp_size 0.5.17
dynamic_batch_tokenizer_batch_size 0.5.4
dynamic_batch_tokenizer_batch_timeout 0.5.4
elastic_ep_backend 0.5.4
elastic_ep_initial_size 0.5.16
elastic_ep_join_mode 0.5.16
elastic_ep_join_rank_offset 0.5.16
elastic_ep_rejoin 0.5.11 0.5.21 0.5.16
elastic_ep_scale_timeout 0.5.16
enable_adaptive_dispatch_to_encoder 0.5.10
enable_aiter_allreduce_fusion 0.5.10
enable_amd_monokernel 0.5.23
enable_attn_tp_input_scattered 0.5.6.post2
enable_beta_spec 0.5.4 0.5.5
enable_breakable_cuda_graph 0.5.11 0.5.20 0.5.14
enable_broadcast_mm_inputs_process 0.5.6.post2
enable_cache_report 0.5.4
enable_cp_decode_attn_tp 0.5.17
enable_cudagraph_gc 0.5.4
enable_custom_logit_processor 0.5.4
enable_decoder_swa_bounded_replay 0.5.21
enable_deepep_moe 0.5.4 0.5.5 0.5.4
enable_deepep_waterfill 0.5.12 0.5.16
enable_deepseek_v4_fp4_indexer 0.5.13
enable_dense_mlp_attn_tp 0.5.19
enable_deterministic_inference 0.5.4
enable_double_sparsity 0.5.4 0.5.11
enable_dp_attention 0.5.4 - 0.5.22
enable_dp_attention_local_control_broadcast 0.5.11
enable_dp_lm_head 0.5.4
enable_draft_weights_cpu_backup 0.5.6.post2
enable_dsa_cache_layer_split 0.5.16
enable_dsa_fused_indexer 0.5.22
enable_dsa_prefill_context_parallel 0.5.13 0.5.20 0.5.14
enable_dynamic_batch_tokenizer 0.5.4
enable_dynamic_chunking 0.5.7
enable_elastic_expert_backup 0.5.10
enable_encoder_swa_bounded_replay 0.5.21
enable_ep_moe 0.5.4 0.5.5 0.5.4
enable_eplb 0.5.4
enable_expert_distribution_metrics 0.5.4 0.5.20 0.5.18
enable_flashinfer_allreduce_fusion 0.5.4 - 0.5.14
enable_flashinfer_autotune 0.5.6.post2 0.5.7
enable_flashinfer_cutedsl_moe 0.5.4 0.5.5 0.5.4
enable_flashinfer_cutlass_moe 0.5.4 0.5.5 0.5.4
enable_flashinfer_mxfp4_moe 0.5.4 0.5.5 0.5.4
enable_flashinfer_trtllm_moe 0.5.4 0.5.5 0.5.4
enable_flexkv 0.5.16
enable_forward_pass_metrics 0.5.12
enable_fp32_lm_head 0.5.4
enable_fused_moe_sum_all_reduce 0.5.10
enable_fused_qk_norm_rope 0.5.6.post2
enable_gdn_replayssm_spec 0.5.16 0.5.20 0.5.17
enable_hicache 0.5.23
enable_hierarchical_cache 0.5.4
enable_hisparse 0.5.10
enable_http2 0.5.11
enable_http_worker_reuseport 0.5.23
enable_int8_mamba_checkpoint 0.5.14
enable_kv_cache_sharding 0.5.22
enable_layernorm_sp 0.5.19
enable_layerwise_nvtx_marker 0.5.6.post2
enable_lean_attention 0.5.19
enable_linear_replayssm 0.5.15
enable_linear_replayssm_spec 0.5.17
enable_linker_mla_dedup 0.5.21
enable_lmcache 0.5.4
enable_lora 0.5.4
enable_lora_overlap_loading 0.5.8
enable_mamba_cache_stochastic_rounding 0.5.15
enable_megamoe_for_layernorm_sp 0.5.23
enable_memory_saver 0.5.4
enable_metrics 0.5.4
enable_metrics_for_all_schedulers 0.5.4
enable_mfu_metrics 0.5.10
enable_mis 0.5.11
enable_mixed_chunk 0.5.4
enable_mm_global_cache 0.5.10
enable_mscclpp 0.5.4
enable_multi_layer_eagle 0.5.7
enable_multimodal 0.5.4
enable_nan_detection 0.5.4 0.5.13 0.5.10
enable_nccl_nvls 0.5.4
enable_nsa_prefill_context_parallel 0.5.6.post2 0.5.20 0.5.13
enable_nvidia_megakernel 0.5.23
enable_p2p_check 0.5.4
enable_page_major_kv_layout 0.5.15
enable_paged_experts 0.5.23
enable_pd_role_switch 0.5.21
enable_pdmux 0.5.4
enable_piecewise_cuda_graph 0.5.4 0.5.14 0.5.10
enable_precise_embedding_interpolation 0.5.7
enable_prefill_context_parallel 0.5.10 0.5.20 0.5.14
enable_prefill_cp 0.5.14
enable_prefill_delayer 0.5.8
enable_prefix_mm_cache 0.5.7
enable_priority_scheduling 0.5.4
enable_profile_cuda_graph 0.5.4
enable_quant_communications 0.5.11
enable_request_time_stats_logging 0.5.4
enable_response_store 0.5.20
enable_return_aux_hidden_states 0.5.23
enable_return_hidden_states 0.5.4
enable_return_indexer_topk 0.5.12
enable_return_routed_experts 0.5.7
enable_scattered_sconv 0.5.16
enable_session_radix_cache 0.5.15
enable_shared_experts_attn_tp 0.5.19
enable_single_batch_overlap 0.5.4
enable_ssl_refresh 0.5.10
enable_streaming_session 0.5.10
enable_strict_thinking 0.5.12
enable_symm_mem 0.5.4
enable_tf32_matmul 0.5.15
enable_tokenizer_batch_encode 0.5.4
enable_torch_compile 0.5.4
enable_torch_compile_debug_mode 0.5.6.post2
enable_torch_symm_mem 0.5.4
enable_tp_lm_head_all_to_all 0.5.18
enable_trace 0.5.4
enable_triton_kernel_moe 0.5.4 0.5.5 0.5.4
enable_two_batch_overlap 0.5.4
enable_unified_cache_external_linker 0.5.20
enable_unified_memory 0.5.15
enable_w4a4_mxfp4_megamoe 0.5.19
enable_waterfill 0.5.16
enable_watermark 0.5.22
enable_weights_cpu_backup 0.5.4
encoder_bootstrap_port 0.5.13
encoder_only 0.5.7
encoder_register_urls 0.5.13
encoder_transfer_backend 0.5.7
encoder_urls 0.5.7
enforce_disable_flashinfer_allreduce_fusion 0.5.10
enforce_piecewise_cuda_graph 0.5.10 0.5.20 0.5.14
enforce_shared_experts_fusion 0.5.11
engine_info_bootstrap_port 0.5.10
ep 0.5.4
ep_dispatch_algorithm 0.5.4
ep_num_redundant_experts 0.5.4
ep_size 0.5.4
eplb_algorithm 0.5.4
eplb_min_rebalancing_utilization_threshold 0.5.4
eplb_rebalance_layers_per_chunk 0.5.4
eplb_rebalance_num_iterations 0.5.4
expert_balancedness_report_mode 0.5.18
expert_distribution_recorder_buffer_size 0.5.4
expert_distribution_recorder_mode 0.5.4
expert_parallel_size 0.5.4
experts_shared_outer_loras 0.5.10
export_metrics_to_file 0.5.6.post2
export_metrics_to_file_dir 0.5.6.post2
extra_metric_labels 0.5.9
fastapi_root_path 0.5.6.post2
file_storage_path 0.5.4
flashinfer_a2a_dispatch_type 0.5.20
flashinfer_allreduce_fusion_backend 0.5.14
flashinfer_autotune_skip_ops 0.5.17
flashinfer_mla_disable_ragged 0.5.4
flashinfer_mxfp4_moe_precision 0.5.4
flexkv_config_file 0.5.16
forward_hooks 0.5.6.post2
forward_pass_metrics_ipc_name 0.5.12
forward_pass_metrics_worker_id 0.5.12
fp4_gemm_backend 0.5.8 - 0.5.8
fp8_gemm_backend 0.5.6.post2 - 0.5.6.post2
fuseep_mode 0.5.16
gated_launch_port 0.5.19
gc_threshold 0.5.10
gc_warning_threshold_secs 0.5.4
generation_tokens_buckets 0.5.4
gpu_id_step 0.5.4
grammar_backend 0.5.4
grpc_http_sidecar_port 0.5.11
grpc_mode 0.5.4 - 0.5.16
grpc_port 0.5.16
grpc_response_timeout_secs 0.5.21
hf_chat_template_name 0.5.8
hicache_host_memory_fraction 0.5.21
hicache_host_memory_mode 0.5.19
hicache_io_backend 0.5.4
hicache_mem_layout 0.5.4
hicache_ratio 0.5.4
hicache_size 0.5.4
hicache_storage_backend 0.5.4
hicache_storage_backend_extra_config 0.5.4
hicache_storage_prefetch_policy 0.5.4
hicache_storage_prefetch_retry_max_attempts 0.5.19
hicache_storage_prefetch_retry_poll_interval 0.5.19
hicache_write_policy 0.5.4
hierarchical_sparse_attention_extra_config 0.5.8
hisparse_config 0.5.10
host 0.5.4
http2_initial_connection_window_size 0.5.19
http2_max_concurrent_streams 0.5.18
hybrid_kvcache_ratio 0.5.4 0.5.14 0.5.8
image_processor_backend 0.5.18
incremental_streaming_output 0.5.10
init_expert_location 0.5.4
int8_mamba_ckpt_size 0.5.14
is_embedding 0.5.4
json_model_override_args 0.5.4
keep_mm_feature_on_device 0.5.4 0.5.21 0.5.16
kt_amx_method 0.5.4 0.5.6.post2
kt_amx_weight_path 0.5.4 0.5.6.post2
kt_cpuinfer 0.5.4
kt_max_deferred_experts_per_token 0.5.5
kt_method 0.5.6.post2
kt_num_gpu_experts 0.5.4
kt_threadpool_count 0.5.4
kt_weight_path 0.5.6.post2
kv_cache_dtype 0.5.4
kv_canary 0.5.13
kv_canary_real_data 0.5.13
kv_canary_sweep_interval 0.5.13
kv_events_config 0.5.4
language_model_only 0.5.18
language_only 0.5.7
limit_mm_data_per_request 0.5.7
linear_attn_backend 0.5.10
linear_attn_decode_backend 0.5.10
linear_attn_prefill_backend 0.5.10
linear_attn_verify_backend 0.5.17
linear_replayssm_cache_len 0.5.15
lmcache_config_file 0.5.13
load_balance_method 0.5.4
load_format 0.5.4
load_publish_endpoint 0.5.19
load_snapshot_publish_interval 0.5.13
load_watch_interval 0.5.4 0.5.7
log_level 0.5.4
log_level_http 0.5.4
log_requests 0.5.4
log_requests_format 0.5.7
log_requests_level 0.5.4
log_requests_target 0.5.8
lora_backend 0.5.4
lora_drain_wait_threshold 0.5.12
lora_eviction_policy 0.5.4
lora_paths 0.5.4
lora_strict_loading 0.5.11
lora_target_modules 0.5.4
lora_use_virtual_experts 0.5.11
mamba_backend 0.5.9
mamba_cache_philox_rounds 0.5.15
mamba_full_memory_ratio 0.5.4
mamba_max_states_per_path 0.5.17
mamba_radix_cache_strategy 0.5.14
mamba_scheduler_strategy 0.5.7 0.5.20 0.5.14
mamba_ssm_dtype 0.5.4
mamba_track_interval 0.5.7
max_ep_size 0.5.16
max_loaded_loras 0.5.4
max_lora_chunk_size 0.5.4
max_lora_rank 0.5.4
max_loras_per_batch 0.5.4
max_mamba_cache_size 0.5.4
max_prefill_tokens 0.5.4
max_queued_requests 0.5.4
max_running_requests 0.5.4
max_total_tokens 0.5.4
media_url_max_file_size_mb 0.5.18
mem_fraction_static 0.5.4
min_free_slots_delay 0.5.15
mlx_enable_sampling 0.5.18
mm_attention_backend 0.5.4
mm_enable_dp_encoder 0.5.6.post2
mm_feature_transport 0.5.16
mm_global_cache_backend 0.5.18
mm_io_worker_num 0.5.17
mm_max_concurrent_calls 0.5.5 0.5.10
mm_per_request_timeout 0.5.5 0.5.10
mm_preprocess_cache_size_mb 0.5.18
mm_process_config 0.5.6.post2
mm_processor_worker_num 0.5.17
model 0.5.4
model_checksum 0.5.8
model_config_parser 0.5.12
model_impl 0.5.4
model_loader_extra_config 0.5.4
model_path 0.5.4
modelexpress_config 0.5.10
modelopt_checkpoint_restore_path 0.5.4
modelopt_checkpoint_save_path 0.5.4
modelopt_export_path 0.5.4
modelopt_quant 0.5.4
moe_a2a_backend 0.5.4
moe_data_parallel_size 0.5.9
moe_dense_tp_size 0.5.4
moe_dp_size 0.5.9
moe_runner_backend 0.5.4
monokernel_backend 0.5.23 - 0.5.23
mooncake_ib_device 0.5.4
msprobe_dump_config 0.5.11
multi_item_scoring_delimiter 0.5.4 0.5.11
nccl_init_addr 0.5.4
nccl_port 0.5.4
nnodes 0.5.4
node_rank 0.5.4
nsa_decode_backend 0.5.4 0.5.20 0.5.13
nsa_prefill_backend 0.5.4 0.5.20 0.5.13
nsa_prefill_cp_mode 0.5.8 0.5.20 0.5.13
num_continuous_decode_steps 0.5.4
num_reserved_decode_tokens 0.5.4
numa_node 0.5.4
offload_group_size 0.5.4
offload_mode 0.5.4
offload_num_in_group 0.5.4
offload_prefetch_step 0.5.4
oltp_traces_endpoint 0.5.4 0.5.5
optimistic_prefill_attempts 0.5.16
optimistic_prefill_retries 0.5.13 0.5.16
otlp_service_name 0.5.21
otlp_traces_endpoint 0.5.5
page_size 0.5.4
paged_experts_num_resident 0.5.23
pdmux_config_path 0.5.4
piecewise_cuda_graph_compiler 0.5.4 0.5.20 0.5.14
piecewise_cuda_graph_max_tokens 0.5.4 0.5.20 0.5.14
piecewise_cuda_graph_tokens 0.5.4 0.5.20 0.5.14
pipeline_parallel_size 0.5.4
ple_offload_backend 0.5.20
ple_offload_dir 0.5.20
ple_offload_embedding 0.5.20
port 0.5.4
pp_async_batch_depth 0.5.7
pp_max_micro_batch_size 0.5.4
pp_size 0.5.4
pre_warm_nccl 0.5.10
preferred_sampling_params 0.5.4
prefill_attention_backend 0.5.4
prefill_cp_mode 0.5.10 0.5.20 0.5.14
prefill_decode_interval 0.5.19
prefill_decode_interval_min_bs 0.5.23
prefill_delayer_forward_passes_buckets 0.5.8
prefill_delayer_max_delay_ms 0.5.12
prefill_delayer_max_delay_passes 0.5.8
prefill_delayer_queue_min_ratio 0.5.12
prefill_delayer_token_usage_low_watermark 0.5.8
prefill_delayer_wait_seconds_buckets 0.5.8
prefill_kv_cache_dequant_dtype 0.5.21
prefill_max_requests 0.5.7
prefill_only_disable_kv_cache 0.5.12
prefill_round_robin_balance 0.5.4 0.5.20 0.5.8
priority_scheduling_preemption_threshold 0.5.4
prompt_tokens_buckets 0.5.4
qsa_indexer_dtype 0.5.22
quantization 0.5.4
quantization_param_path 0.5.4
quantize_and_serve 0.5.4
radix_cache_backend 0.5.13
radix_eviction_policy 0.5.4
radix_eviction_policy_config 0.5.20
random_seed 0.5.4
reasoning_parser 0.5.4
record_nolora_graph 0.5.11 0.5.13
remote_instance_weight_loader_backend 0.5.7
remote_instance_weight_loader_seed_instance_ip 0.5.4
remote_instance_weight_loader_seed_instance_service_port 0.5.4
remote_instance_weight_loader_send_weights_group_ports 0.5.4
remote_instance_weight_loader_start_seed_via_transfer_engine 0.5.7
retraction_policy 0.5.16
return_aux_hidden_state_layer_ids 0.5.23
return_hidden_states_mode 0.5.17
return_input_ids 0.5.20
return_output_ids 0.5.20
revision 0.5.4
rl_on_policy_target 0.5.5
rl_quant_profile 0.5.6.post2
sampling_backend 0.5.4
sampling_defaults 0.5.4
sampling_mask_max_tokens 0.5.20
schedule_conservativeness 0.5.4
schedule_low_priority_values_first 0.5.4
schedule_policy 0.5.4
scheduler_recv_interval 0.5.4
served_model_name 0.5.4
shared_experts_tp_size 0.5.21
show_time_cost 0.5.4
sidecar 0.5.16
sidecar_args 0.5.16
skip_server_warmup 0.5.4
skip_tokenizer_init 0.5.4
sleep_on_idle 0.5.4
sm_group_num 0.5.4
smg_grpc_mode 0.5.16 - 0.5.16
smg_http_sidecar_port 0.5.16
soft_watchdog_timeout 0.5.7
spec_trace_dir 0.5.15
speculative_accept_threshold_acc 0.5.4
speculative_accept_threshold_single 0.5.4
speculative_adaptive 0.5.11
speculative_adaptive_config 0.5.11
speculative_algorithm 0.5.4
speculative_attention_mode 0.5.4
speculative_dflash_block_size 0.5.11
speculative_dflash_draft_window_size 0.5.11 0.5.20 0.5.13
speculative_domino_candidate_pool_size 0.5.20
speculative_draft_attention_backend 0.5.7
speculative_draft_kv_cache_dtype 0.5.18
speculative_draft_load_format 0.5.4
speculative_draft_model 0.5.4
speculative_draft_model_path 0.5.4
speculative_draft_model_quantization 0.5.7
speculative_draft_model_revision 0.5.4
speculative_draft_sink_size 0.5.21
speculative_draft_window_size 0.5.12
speculative_dsa_topk_backend 0.5.19
speculative_dspark_align_verify_tokens_to_graph_tier 0.5.16
speculative_dspark_block_size 0.5.16
speculative_dspark_confidence_sts_path 0.5.16
speculative_dspark_sps_table_path 0.5.16
speculative_eagle_topk 0.5.4
speculative_enable_w4a4_mxfp4_megamoe 0.5.22
speculative_moe_a2a_backend 0.5.6.post2
speculative_moe_runner_backend 0.5.5
speculative_ngram_branch_length 0.5.4 0.5.10
speculative_ngram_capacity 0.5.4
speculative_ngram_external_corpus_max_tokens 0.5.11
speculative_ngram_external_corpus_path 0.5.11
speculative_ngram_external_sam_budget 0.5.11
speculative_ngram_match_type 0.5.4
speculative_ngram_max_bfs_breadth 0.5.4
speculative_ngram_max_match_window_size 0.5.4 0.5.10
speculative_ngram_max_trie_depth 0.5.10
speculative_ngram_min_bfs_breadth 0.5.4
speculative_ngram_min_match_window_size 0.5.4 0.5.10
speculative_num_draft_tokens 0.5.4
speculative_num_steps 0.5.4
speculative_skip_dp_mlp_sync 0.5.11 0.5.23
speculative_token_map 0.5.4
speculative_use_block_verification 0.5.22
speculative_use_rejection_sampling 0.5.14
ssl_ca_certs 0.5.10
ssl_certfile 0.5.10
ssl_keyfile 0.5.10
ssl_keyfile_password 0.5.10
startup_weight_load_mode 0.5.18
stream_interval 0.5.4
stream_output 0.5.4 0.5.20 0.5.10
stream_response_default_include_usage 0.5.10
strip_thinking_cache 0.5.11
swa_full_tokens_ratio 0.5.4
swa_prefix_tails 0.5.21
tbo_token_distribution_threshold 0.5.4
tensor_parallel_size 0.5.4
tokenizer_backend 0.5.11
tokenizer_metrics_allowed_custom_labels 0.5.4
tokenizer_metrics_custom_labels_header 0.5.4
tokenizer_mode 0.5.4
tokenizer_path 0.5.4
tokenizer_worker_num 0.5.4
tool_call_parser 0.5.4
tool_server 0.5.4
torch_compile_max_bs 0.5.4
torchao_config 0.5.4 0.5.18
tp_size 0.5.4
trace_modules 0.5.13
triton_attention_num_kv_splits 0.5.4
triton_attention_reduce_in_fp32 0.5.4
triton_attention_split_tile_size 0.5.4
trust_mm_content_hashes 0.5.18
trust_remote_code 0.5.4
trust_request_chat_template 0.5.21
unified_cache_external_linker_backend 0.5.20
unified_cache_external_linker_config 0.5.23 - 0.5.23
uno_lora_path 0.5.20
use_ray 0.5.10
uvicorn_access_log_exclude_prefixes 0.5.8
warmups 0.5.4
watchdog_timeout 0.5.4
watermark_config 0.5.22
weight_cache_mode 0.5.17
weight_cache_socket 0.5.17
weight_cache_timeout 0.5.17
weight_loader_disable_mmap 0.5.4
weight_loader_drop_cache_after_load 0.5.12
weight_loader_prefetch_checkpoints 0.5.11
weight_loader_prefetch_num_threads 0.5.11
weight_version 0.5.4
"""

# names that one setting has or had
SAME = """
cuda_graph_bs cuda_graph_bs_decode
cuda_graph_bs_prefill piecewise_cuda_graph_tokens
cuda_graph_max_bs cuda_graph_max_bs_decode
cuda_graph_max_bs_prefill piecewise_cuda_graph_max_tokens
cuda_graph_tc_compiler piecewise_cuda_graph_compiler
dsa_decode_backend nsa_decode_backend
dsa_prefill_backend nsa_prefill_backend
dsa_prefill_cp_mode nsa_prefill_cp_mode
enable_dsa_prefill_context_parallel enable_nsa_prefill_context_parallel
enable_gdn_replayssm_spec enable_linear_replayssm_spec
enable_hicache enable_hierarchical_cache
grpc_http_sidecar_port smg_http_sidecar_port
hierarchical_sparse_attention_extra_config hisparse_config
incremental_streaming_output stream_output
mamba_radix_cache_strategy mamba_scheduler_strategy
speculative_dflash_draft_window_size speculative_draft_window_size
"""
